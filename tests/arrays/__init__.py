"""Generated arrays and tables, valid and wrong, beside an oracle that says what must arrive or that it must raise."""

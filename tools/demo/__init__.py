"""Contains the tool behind `./demo`: it runs examples/demo.py and Spark, reads everything back and compares."""

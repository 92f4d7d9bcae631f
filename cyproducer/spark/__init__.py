"""The PySpark data source ``cyproducer``, batch and streaming."""

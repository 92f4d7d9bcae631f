"""The PySpark sink ``cyproducer``, batch and streaming: whole Arrow columns into the host's one producer.

Columns: ``value`` (binary or string, required), ``key`` (likewise), ``partition`` (int), ``timestamp``
(TIMESTAMP), ``headers`` (array<struct<key:string,value:binary>>), ``topic`` (string; the option ``topic``
stands in for it).
Options: ``kafka.*`` are Kafka's producer settings; ``topic``, ``includeHeaders``, ``sender``.
Delivery is at least once: a task ends when its own rows are acknowledged, and fails when one of them is not.

Importing this package imports neither PySpark nor anything else: `writer` and `stream` do.
"""

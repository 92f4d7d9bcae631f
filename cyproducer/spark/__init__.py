"""Provides the PySpark sink ``cyproducer`` for batch and streaming, which sends whole Arrow columns to Kafka.

Columns: ``value`` (binary or string, required), ``key`` (binary or string), ``partition`` (int), ``timestamp``
(TIMESTAMP), ``headers`` (array<struct<key:string,value:binary>>), ``topic`` (string; the option ``topic`` overrides
it). ``offset`` and ``timestampType``, which Spark's Kafka source adds, are ignored.
Options: ``kafka.*`` are Kafka's producer settings; also ``topic``, ``includeHeaders``, ``sender``. Options of Spark's
Kafka source are ignored with a warning.
Delivery is at least once: a task succeeds when all of its rows are acknowledged, and fails when a row is not.

This module imports nothing. `writer` and `stream` import PySpark.
"""

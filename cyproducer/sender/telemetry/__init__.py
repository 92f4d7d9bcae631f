"""Prepares what is pushed to brokers: the state of the subscription, and the metrics in OpenTelemetry's format."""

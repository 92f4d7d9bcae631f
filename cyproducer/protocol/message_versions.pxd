"""Declares what native code takes from Kafka's definitions. tools/generate.py writes this file."""


cdef enum:
    PRODUCE_KEY = 0
    FLEXIBLE_FROM = 9
    TOPIC_IDS_FROM = 13
    THROTTLES_FROM = 6
    LOG_START_FROM = 5
    RECORD_ERRORS_FROM = 8
    LEADER_HINTS_FROM = 10
    CURRENT_LEADER_TAG = 0
    NODE_ENDPOINTS_TAG = 0
    DESCRIBE_PRODUCERS_KEY = 61
    DESCRIBE_PRODUCERS_VERSION = 0

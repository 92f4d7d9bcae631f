"""Declares the error codes of this project that the sender writes into outcomes."""


cdef enum ClientCode:
    # the numbers of cyproducer.errors.CLIENT_CODES; a unit test compares them
    CODE_DELIVERY_TIMEOUT = -1001
    CODE_OUTCOME_UNKNOWN = -1002
    CODE_INVALID_BATCH = -1005
    CODE_UNKNOWN_PARTITION = -1007
    CODE_REQUEST_TOO_LARGE = -1015
    CODE_TRANSACTION_ABORTED = -1019
    CODE_AUTHENTICATION_FAILED = -1023

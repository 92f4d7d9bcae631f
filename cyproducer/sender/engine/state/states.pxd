"""Declares the states of lanes and connections, as the fields of the structures in model.pxd have them."""


# Whether the leader has the state of the lane's producer: it is asked before an unsure batch is sent again.
cdef enum StateAsked:
    STATE_NOT_ASKED = 0
    STATE_ASKED = 1
    STATE_KNOWN = 2


cdef enum LaneDoubt:                # see slow_lanes.pyx
    DOUBT_NONE = 0
    DOUBT_SHARED = 1                # a late request contained a batch of it
    DOUBT_ALONE = 2                 # a request that contained nothing else was late


cdef enum LaneList:
    LIST_NONE = 0
    LIST_LINGERING = 1
    LIST_READY = 2


cdef enum Settling:                 # of the end of a transaction, see TransactionTable.hold()
    SETTLED = 0
    UNSETTLED = 1                   # no batch of the next transaction is sent
    UNSETTLED_AND_AWAITED = 2       # and one waits


cdef enum ConnectionState:
    CONNECTION_CLOSED = 0
    CONNECTION_CONNECTING = 1
    CONNECTION_HANDSHAKING = 2      # connected; Python makes the TLS handshake
    CONNECTION_NEGOTIATING = 3      # Python exchanges ApiVersions, and authenticates with SASL
    CONNECTION_READY = 4

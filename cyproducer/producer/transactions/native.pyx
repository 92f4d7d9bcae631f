"""The native part of transactions: what a running call holds, and how a call begins and ends."""

cimport cython

from cyproducer.producer.core.native cimport Waiter

import math

from cyproducer import errors
from cyproducer.producer.core.native import deadline_after, run_blocking
from cyproducer.producer.session.kafka_metrics import count_refused
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.facts import Facts, State
from cyproducer.producer.transactions.waits import ThreadWaits
from cyproducer.shm import system_clock

include "state.pyx"
include "methods.pyx"

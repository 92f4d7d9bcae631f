"""Implements `KafkaProducer.transaction()`, a context manager for threads and for asyncio.

It is native code, so that no signal handler can raise after a transaction has begun and before its block is entered, or
after the block and before its end is called.
"""


cdef object READY = State.READY
cdef tuple NOT_ABORTING = (State.IN_TRANSACTION, State.ABORTABLE_ERROR)
cdef tuple CAN_ABORT = (*NOT_ABORTING, State.ABORTING_TRANSACTION)


@cython.final
@cython.auto_pickle(False)
cdef class Transaction:
    """A transaction as a context manager: `with producer.transaction():` or `async with producer.transaction():`.

    A normal end of the block commits. An exception aborts and is raised again; if the abort fails as well, a note of
    the exception says so. A commit that fails so that the transaction can only be aborted is aborted, and its error is
    raised. A block that has ended the transaction itself is left as it is.
    """

    cdef object producer
    cdef TransactionState state
    cdef object begun       # the number of the transaction

    def __cinit__(self, producer):
        self.producer = producer
        self.state = manager_of(producer, "transaction").state

    def __enter__(self):
        self.producer.begin_transaction()
        self.begun = self.state.now.begun
        return self

    def __exit__(self, kind, error, trace, /):
        if error is not None:
            self.abort(error)
        elif self.state.now.state is not READY and self.state.now.begun == self.begun:
            try:
                self.producer.commit_transaction()
            except BaseException as failed:
                self.abort(failed)
                raise

    cdef bint is_open(self, tuple states) except -1:
        """Return whether the transaction is in one of these states, in which it can be aborted."""
        return self.state.now.begun == self.begun and self.state.now.state in states

    cdef int abort(self, object error) except -1:
        """Abort the transaction because of an error. Do it again if a handler's exception came before it began."""
        if not self.is_open(CAN_ABORT):
            return 0
        try:
            self.producer.abort_transaction()
        except errors.KafkaError as failure:
            note(error, failure)
        except BaseException:
            if self.is_open(NOT_ABORTING):
                self.producer.abort_transaction()
            raise
        return 0

    async def __aenter__(self):
        await run_async(self.producer, TransactionManager.begin_transaction, None)
        self.begun = self.state.now.begun
        return self

    async def __aexit__(self, kind, error, trace, /):
        if error is not None:
            await self._abort_async(error)
        elif self.state.now.state is not READY and self.state.now.begun == self.begun:
            try:
                await self.producer.commit_transaction_async()
            except BaseException as failed:
                await self._abort_async(failed)
                raise

    async def _abort_async(self, error):
        """Do what abort() does, for asyncio."""
        if not self.is_open(CAN_ABORT):
            return
        try:
            await self.producer.abort_transaction_async()
        except errors.KafkaError as failure:
            note(error, failure)
        except BaseException:
            if self.is_open(NOT_ABORTING):
                await self.producer.abort_transaction_async()
            raise


cdef object note(object error, object failure):
    error.add_note(f"abort_transaction() has failed as well: {failure}")

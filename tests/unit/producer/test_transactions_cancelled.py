"""Tests calls for transactions in asyncio: cancelled at every await, interrupted, and those that come late."""

import asyncio

import pytest
from standin_transactions import HOLD
from support.interrupts import HandlerError, at_each_entry, is_finalizer

from cyproducer import KafkaProducer, errors

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
NAMES = ["init", "offsets", "commit", "abort"]
OFFSETS = {("t", 0): 5}


class CancelledAt:
    """Awaits a coroutine, and cancels it at the await number `at` (from 0 on; 0 is before its first step).

    with_answer   cancel it when what it awaits has come, instead of at once
    reached       whether it was cancelled there
    """

    def __init__(self, coroutine, at, with_answer):
        self.coroutine, self.at, self.with_answer = coroutine, at, with_answer
        self.reached = at == 0

    def __await__(self):
        steps = self.coroutine.__await__()
        if self.at == 0:
            steps.throw(asyncio.CancelledError())
        for number in range(1, self.at + 1):
            try:
                future = steps.send(None)
            except StopIteration:
                return
            self.reached = number == self.at
            if self.reached and not self.with_answer:
                break
            yield future
        steps.throw(asyncio.CancelledError())


async def cancel(coroutine, at, with_answer):
    """Cancel a coroutine at an await. Return whether it has got as far as that."""
    cancelled = CancelledAt(coroutine, at, with_answer)
    try:
        await cancelled
    except asyncio.CancelledError:
        assert cancelled.reached
    else:
        assert not cancelled.reached
    return cancelled.reached


class Rig:
    """Producers of one sender, each in the state in which a call is possible."""

    def __init__(self, sender, name):
        self.sender, self.name = sender, name
        self.producer = None

    async def prepare(self):
        await self.close()
        producer = self.producer = KafkaProducer(sender=self.sender.path, transactional_id="x", max_block_ms=30_000)
        if self.name != "init":
            await producer.init_transactions_async()
            producer.begin_transaction()
            await producer.send_async("t", b"first")

    def call(self):
        producer = self.producer
        if self.name == "offsets":
            return producer.send_offsets_to_transaction_async(OFFSETS, "g")
        return getattr(producer, f"{self.name}_transaction{'s' * (self.name == 'init')}_async")()

    async def finish(self):
        """Repeat the call, end its transaction, and check that another one is possible and nothing was done twice."""
        producer = self.producer
        await self.call()
        if self.name == "offsets":
            await producer.commit_transaction_async()
        async with producer.transaction():
            await producer.send_async("t", b"second")
        does = self.sender.commands.does_once()
        assert does.count("commit") == {"init": 1, "abort": 1}.get(self.name, 2)
        assert does.count("offsets") == (self.name == "offsets")

    async def close(self):
        if self.producer is not None:
            await asyncio.to_thread(self.producer.close, 30)


def run(main):
    return asyncio.run(asyncio.wait_for(main, 120))


@pytest.mark.parametrize("with_answer", [False, True], ids=["at once", "with the answer"])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_cancelled_at_every_await(sender, name, with_answer):
    async def main():
        rig = Rig(sender, name)
        at = 0
        while True:
            await rig.prepare()
            if not await cancel(rig.call(), at, with_answer):
                break
            await rig.finish()
            at += 1
        await rig.close()
        return at

    assert run(main()) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_cancelled_and_its_repetition_is_cancelled(sender, name):
    async def main():
        rig = Rig(sender, name)
        for first in range(3):
            for then in range(4):
                for with_answer in (False, True):
                    await rig.prepare()
                    if not await cancel(rig.call(), first, with_answer):
                        continue
                    if await cancel(rig.call(), then, not with_answer):
                        await rig.finish()
        await rig.close()

    run(main())


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_interrupted_in_its_event_loop(sender, name):
    """A handler raises at some instructions. The functions that the loop calls itself are left out."""
    rig = Rig(sender, name)
    loop = asyncio.new_event_loop()

    def prepare():
        loop.run_until_complete(rig.prepare())
        call = rig.call()
        return lambda: loop.run_until_complete(call)

    def is_callback(frame):
        return frame.f_code.co_name in ("resolve", "_serve") or is_finalizer(frame)

    moments = 0
    try:
        for told in at_each_entry(prepare, 3, 17, skip=is_callback, steps="/producer/transactions/"):
            moments += 1
            if told.error is not None:
                assert isinstance(told.error, HandlerError), told.where
                loop.run_until_complete(rig.finish())
        loop.run_until_complete(rig.close())
    finally:
        loop.close()
    assert moments > 3


# ---------------------------------------------------------------- late calls


@pytest.mark.parametrize("name", ["offsets", "commit", "abort"])
def test_a_call_that_starts_in_the_next_transaction_does_nothing(sender, name):
    async def main():
        rig = Rig(sender, name)
        await rig.prepare()
        producer, late = rig.producer, rig.call()
        await producer.commit_transaction_async()
        producer.begin_transaction()
        await producer.send_async("t", b"one half")
        with pytest.raises(errors.IllegalStateError, match=r"_\w+\(\) has done nothing: the transaction for which it"):
            await late
        await producer.send_async("t", b"the other half")
        await producer.commit_transaction_async()
        await rig.close()

    run(main())
    assert sender.commands.does() == ["init", "commit", "commit"]


@pytest.mark.parametrize("name", ["offsets", "commit", "abort"])
def test_a_call_that_gets_its_turn_in_the_next_transaction_does_nothing(sender, name):
    async def main():
        rig = Rig(sender, name)
        await rig.prepare()
        producer = rig.producer

        async def end_and_begin():
            await producer.commit_transaction_async()
            producer.begin_transaction()

        sender.commands.script["commit"] = [HOLD]
        first = asyncio.create_task(end_and_begin())
        await asyncio.sleep(0)
        late = asyncio.create_task(rig.call())
        while not sender.commands.holds:
            await asyncio.sleep(0.01)
        assert not late.done()
        sender.commands.release()
        await first
        with pytest.raises(errors.IllegalStateError, match="has done nothing: the transaction for which it was called"):
            await late
        await producer.commit_transaction_async()
        await rig.close()

    run(main())
    assert sender.commands.does() == ["init", "commit", "commit"]


@pytest.mark.parametrize("name", ["commit", "abort"])
def test_a_call_after_the_end_tells_how_the_transaction_has_ended(sender, name):
    async def main():
        rig = Rig(sender, name)
        await rig.prepare()
        await rig.call()
        for again in (rig.producer.commit_transaction_async, rig.producer.abort_transaction_async):
            with pytest.raises(errors.IllegalStateError, match=f"the last transaction was {name}t?ed"):
                await again()
        await rig.close()

    run(main())

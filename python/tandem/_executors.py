"""Where the batches of a sweep are played: on the cores of this machine, or by Dask."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tandem import _tandem
from tandem._plan import Plan, Run, arguments, play_batch

Answer = tuple[Sequence[Run], dict[str, Any]]
"""A batch, and what :func:`tandem._plan.play_batch` found."""


class Executor(ABC):
    """Plays batches."""

    workers: int
    """How many batches are played side by side."""
    batch_seconds: float
    """What a batch should take: long beside the cost of sending it, short beside the whole."""

    @abstractmethod
    def play(self, plan: Plan, batches: Sequence[Sequence[Run]]) -> Iterator[Answer]:
        """Plays batches, and yields what each found, in the order in which they end."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends what is played."""


class Cores(Executor):
    """The cores of this machine: threads, each with a batch, which the Rust runner plays without the
    GIL. Runs in real time (``lab``) are one batch, of which the runner plays as many at once as the
    machine carries.
    """

    batch_seconds = 0.25

    def __init__(self, workers: int | None, in_real_time: bool) -> None:
        cores = len(os.sched_getaffinity(0))
        self._jobs = workers if in_real_time else 1
        self.workers = 1 if in_real_time else workers or cores
        self._pool = concurrent.futures.ThreadPoolExecutor(self.workers, thread_name_prefix="tandem-sweep")
        self._cancel = _tandem.Cancel()
        self._futures: dict[concurrent.futures.Future[dict[str, Any]], Sequence[Run]] = {}

    def play(self, plan: Plan, batches: Sequence[Sequence[Run]]) -> Iterator[Answer]:
        for batch in batches:
            future = self._pool.submit(play_batch, *arguments(plan, batch), self._jobs, plan.tries, self._cancel)
            self._futures[future] = batch
        for future in concurrent.futures.as_completed(list(self._futures)):
            yield self._futures.pop(future), future.result()

    def cancel(self) -> None:
        self._cancel.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)


class Dask(Executor):
    """The workers of a Dask cluster. A batch whose worker dies is played by another one."""

    batch_seconds = 2.0

    def __init__(self, client: Any) -> None:
        if getattr(client, "asynchronous", False):
            raise TypeError("the client is asynchronous: give a distributed.Client without asynchronous=True")
        self._client = client
        self.workers = max(1, sum(client.nthreads().values()))
        self._futures: list[Any] = []

    def play(self, plan: Plan, batches: Sequence[Sequence[Run]]) -> Iterator[Answer]:
        as_completed: Any = _distributed().as_completed
        name = f"tandem-sweep-{uuid.uuid4().hex[:12]}"
        known = {f"{name}-{index}": batch for index, batch in enumerate(batches)}
        with _loss_is_an_error():
            self._futures = [
                # Batches of a sweep have no result that another call could use.
                self._client.submit(play_batch, *arguments(plan, batch), 1, plan.tries, key=key, pure=False, retries=2)
                for key, batch in known.items()
            ]
            self.show_progress()
            completed = iter(as_completed(self._futures))
        while known:
            with _loss_is_an_error():
                future = next(completed)
                result = future.result()
            batch = known.pop(future.key)
            # The scheduler may forget the result.
            self._futures.remove(future)
            future.release()
            yield batch, result

    def show_progress(self) -> None:
        """Shows Dask's own bar in a notebook. On a terminal it would block."""
        from tandem._outcome import in_notebook

        if in_notebook():
            from IPython.display import display

            display(_distributed().progress(self._futures, notebook=True))

    def cancel(self) -> None:
        # A client that has lost its scheduler has nothing to cancel; the error that says so is
        # already on its way.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            self._client.cancel(self._futures)


@contextlib.contextmanager
def _loss_is_an_error() -> Iterator[None]:
    """Reports that Dask was lost, or has given up a batch. What it raises depends on when it notices
    that.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        is_of_dask = type(error).__module__.startswith("distributed")
        if is_of_dask or isinstance(error, (concurrent.futures.CancelledError, asyncio.CancelledError, OSError, StopIteration)):
            raise _tandem.RunError(f"Dask has lost a batch, or its scheduler ({type(error).__name__}): {error}") from error
        raise


def _distributed() -> Any:
    """The package, which has types for a part of its functions only."""
    import distributed

    return distributed

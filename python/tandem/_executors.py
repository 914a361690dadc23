"""Where the batches of a sweep are played: on the cores of this machine, or by Dask."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import queue
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tandem import _tandem
from tandem._outcome import in_notebook
from tandem._plan import Plan, Run, arguments, play_batch
from tandem._scenario import Scenario

Answer = tuple[Sequence[Run], dict[str, Any]]
"""Runs, and what :func:`tandem._plan.play_batch` found."""

PATIENCE_SECONDS = 1.0
"""How long an executor waits for an answer before it lets the caller do something else."""


class Executor(ABC):
    """Plays batches."""

    workers: int
    """How many batches are played side by side."""
    batch_seconds: float
    """What a batch should take: long beside the cost of sending it, short beside the whole."""
    packs_real_time: bool
    """Whether runs in real time are divided into batches as others are. If not, all of an engine
    are one batch, which is played when nothing else is."""

    @abstractmethod
    def play(self, plan: Plan, batches: Sequence[Sequence[Run]]) -> Iterator[Answer | None]:
        """Plays batches, and yields what was found about some runs as soon as it is known; ``None``
        if nothing was for a second.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Ends what is played."""


class Cores(Executor):
    """The cores of this machine: threads, each with a batch, which the Rust runner plays without the
    GIL. A batch of runs in real time (``lab``) has its answers one by one: the runner plays as many
    of its runs at once as the machine carries.
    """

    batch_seconds = 0.25
    packs_real_time = False

    def __init__(self, workers: int | None) -> None:
        self._jobs_in_real_time = workers
        self.workers = workers or len(os.sched_getaffinity(0))
        self._pool = concurrent.futures.ThreadPoolExecutor(self.workers, thread_name_prefix="tandem-sweep")
        self._cancel = _tandem.Cancel()

    def play(self, plan: Plan, batches: Sequence[Sequence[Run]]) -> Iterator[Answer | None]:
        answers: queue.SimpleQueue[tuple[Sequence[Run], Any]] = queue.SimpleQueue()
        for batch in batches:
            in_real_time = plan.in_real_time[batch[0][0]]
            jobs = self._jobs_in_real_time if in_real_time else 1
            each = functools.partial(_put_one, answers, batch) if in_real_time else None
            future = self._pool.submit(play_batch, plan.scenario, *arguments(plan, batch), jobs, plan.tries, self._cancel, each)
            future.add_done_callback(functools.partial(_put_done, answers, () if in_real_time else batch))
        left = len(batches)
        while left:
            try:
                runs, found = answers.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                yield None
                continue
            if isinstance(found, concurrent.futures.Future):
                left -= 1
                found = found.result()
            if runs:
                yield runs, found

    def cancel(self) -> None:
        self._cancel.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _put_one(answers: queue.SimpleQueue[tuple[Sequence[Run], Any]], batch: Sequence[Run], index: int, found: dict[str, Any]) -> None:
    answers.put(([batch[index]], found))


def _put_done(answers: queue.SimpleQueue[tuple[Sequence[Run], Any]], batch: Sequence[Run], future: Any) -> None:
    answers.put((batch, future))


class Dask(Executor):
    """The workers of a Dask cluster. A batch whose worker dies is played by another one."""

    batch_seconds = 2.0
    packs_real_time = True

    def __init__(self, client: Any, progress: bool) -> None:
        if getattr(client, "asynchronous", False):
            raise TypeError("the client is asynchronous: give a distributed.Client without asynchronous=True")
        self._client = client
        self._progress = progress
        self.workers = max(1, sum(client.nthreads().values()))
        self._scenario: Any = None
        self._futures: list[Any] = []

    def play(self, plan: Plan, batches: Sequence[Sequence[Run]]) -> Iterator[Answer | None]:
        if not batches:
            return
        name = f"tandem-sweep-{uuid.uuid4().hex[:12]}"
        known = {f"{name}-{index}": batch for index, batch in enumerate(batches)}
        with _loss_is_an_error():
            if self._scenario is None:
                # Once to each worker, with its files. Unlike data that is scattered, the result of
                # a task is computed again when all workers that have it die.
                self._scenario = self._client.submit(_unchanged, plan.scenario, key=f"{name}-scenario", pure=False)
            self._futures = [
                # Batches of a sweep have no result that another call could use.
                self._client.submit(play_batch, self._scenario, *arguments(plan, batch), 1, plan.tries, key=key, pure=False, retries=2)
                for key, batch in known.items()
            ]
            if self._progress:
                self._show_progress()
            completed = _distributed().as_completed(self._futures)
        while known:
            if not _is_ready(completed):
                yield None
                continue
            with _loss_is_an_error():
                future = next(completed)
                result = future.result()
            _check_version(result.get("version"))
            batch = known.pop(future.key)
            # The scheduler may forget the result.
            self._futures.remove(future)
            future.release()
            yield batch, result

    def _show_progress(self) -> None:
        """Shows Dask's own bar in a notebook. On a terminal it would block."""
        if in_notebook():
            from IPython.display import display

            display(_distributed().progress(self._futures, notebook=True))

    def cancel(self) -> None:
        # A client that has lost its scheduler has nothing to cancel; the error that says so is
        # already on its way.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            self._client.cancel([*self._futures, *([] if self._scenario is None else [self._scenario])])


def _unchanged(scenario: Scenario) -> Scenario:
    return scenario


def _is_ready(completed: Any) -> bool:
    """Waits until the next future is there, or there is none any more, but not for long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not completed.has_ready() and not completed.is_empty():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _check_version(version: str | None) -> None:
    """Refuses what a worker with another version of this package found.

    Raises:
        RunError: It has another one.
    """
    if version != _tandem.__version__:
        raise _tandem.RunError(
            f"a worker of Dask has tandem-net {version or 'of another version'}, and this program {_tandem.__version__}: "
            "install the same version on all of them"
        )


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
    """Imports the package. Only some of its functions have types, so it is ``Any``."""
    import distributed

    return distributed

"""llama-server's slots: what the memory holds of each conversation, listed, saved, restored and erased.

Here a slot is a place for a sequence in the target's context. A slot's file begins with a line that says what
it is, and a line of JSON that describes it. Then come its tokens (int32), and llama.cpp's own state of it.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spac import _core
from spac.costs.cache import fingerprint
from spac.errors import InputError
from spac.llama_cpp_python.pair import LentContext
from spac.machine.arrays import Int32Array
from spac.machine.files import write_atomically
from spac.serve.refusal import Refusal
from spac.serve.request_queue import RequestQueue

SLOTS = "/slots"
MAGIC = b"spac's slot 1\n"
_NUMBERS = ("tokens", "bytes", "crc")
ACTIONS = ("save", "restore", "erase")


@dataclass(frozen=True)
class Held:
    """Says what the memory holds of one slot."""

    tokens: Int32Array
    busy: bool
    """True while a generation uses it."""
    number: int = -1
    """The sequence in it, of several; -1 for none."""


class Slots:
    """The slots of a served `Llama`. Any thread may call these methods; they wait for the step that runs."""

    def __init__(self, llama: Any, queue: RequestQueue, folder: Path | None = None) -> None:
        """`folder` is where files are; None for none."""
        self._llama, self._queue, self.folder = llama, queue, folder

    @property
    def _batch(self) -> Any:
        engine = self._llama.engine
        return engine.batch if engine is not None else None

    def _between(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns, which runs between two steps."""
        engine = self._llama.engine
        return work() if engine is None else engine.between.run(work)

    def _held(self) -> list[Held]:
        if (batch := self._batch) is not None:
            return [Held(tokens, number >= 0, number) for number, _parked, tokens in batch.session.held()]
        llama = self._llama
        engine, busy = llama.engine, self._queue.n_served > 0
        if busy and engine is not None and engine.session is not None:
            return [Held(engine.session.tokens, busy)]
        return [Held(np.array(llama._input_ids, np.int32), busy)]

    def listed(self) -> list[dict[str, Any]]:
        """Return the slots as llama-server lists them."""
        engine, batch = self._llama.engine, self._batch
        n_ctx = engine.context if engine is not None else self._llama.n_ctx()
        drafts = engine is not None and engine.governor is not None
        figures = {each.id: each.figures() for each in batch.sequences()} if batch is not None else {}
        return [
            {
                "id": at, "n_ctx": n_ctx, "speculative": drafts, "is_processing": each.busy,
                "n_prompt_tokens_cache": len(each.tokens),
                **figures.get(each.number, {}),
            }
            for at, each in enumerate(self._between(self._held))
        ]  # fmt: skip

    def act(self, slot: int, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Save, restore or erase a slot, and return llama-server's answer. Raise Refusal if that fails."""
        if action not in ACTIONS:
            raise Refusal(
                400, f"action: one of {', '.join(ACTIONS)} is needed, not '{action}'", param="action"
            )
        path = self._path(request) if action != "erase" else None
        return dict(self._between(lambda: self._act(slot, action, path)))

    def _act(self, slot: int, action: str, path: Path | None) -> dict[str, Any]:
        slots = self._held_before()
        if not 0 <= slot < len(slots):
            raise Refusal(404, f"there is no slot {slot}: they are 0 to {len(slots) - 1}")
        held = slots[slot]
        if held.busy:
            text = f"slot {slot} is in use: try again later"
            raise Refusal(503, text, retry_after_s=self._queue.retry_after_s())
        started = time.perf_counter()
        if path is None:
            self._replace(slot, held, np.zeros(0, np.int32), np.zeros(0, np.uint8))
            return {"id_slot": slot, "n_erased": len(held.tokens)}
        if action == "save":
            n = self._save(slot, held, path)
            figures = {"n_saved": len(held.tokens), "n_written": n}
        else:
            tokens, state, n = self._read(path)
            self._replace(slot, held, tokens, state)
            figures = {"n_restored": len(tokens), "n_read": n}
        took_ms = (time.perf_counter() - started) * 1e3
        return {"id_slot": slot, "filename": path.name, **figures, "timings": {f"{action}_ms": took_ms}}

    def _held_before(self) -> list[Held]:
        """Return the slots; with one at a time, the caller has the queue's turn, so nothing uses it."""
        slots = self._held()
        if self._batch is not None:
            return slots
        return [Held(np.array(self._llama._input_ids, np.int32), False)]

    def _path(self, request: Mapping[str, Any]) -> Path:
        if self.folder is None:
            raise Refusal(501, "slots have no files here: start the server with --slot-save-path FOLDER")
        name = request.get("filename")
        plain = isinstance(name, str) and name == Path(name).name and name.isprintable() and name[:1] != "."
        if not plain or not name or len(str(name).encode()) > 200:
            raise Refusal(400, "filename: a file's name without folders is needed", param="filename")
        return self.folder / str(name)

    @property
    def _pointer(self) -> int:
        return LentContext(self._llama.ctx).pointer

    def _save(self, slot: int, held: Held, path: Path) -> int:
        if not len(held.tokens):
            raise Refusal(400, f"slot {slot} is empty")
        if held.tokens.min() < 0:
            raise Refusal(400, f"slot {slot} has images, which files do not hold")
        if path.exists() and not _begins_well(path):
            raise Refusal(400, f"{path.name} is there and is no slot's file: choose another name")
        state = _core.sequence_state(self._pointer, slot)
        body = held.tokens.tobytes() + state.tobytes()
        about = {
            "model": fingerprint(Path(self._llama.model_path)), "tokens": len(held.tokens),
            "bytes": len(state), "crc": zlib.crc32(body),
        }  # fmt: skip
        data = MAGIC + json.dumps(about).encode() + b"\n" + body
        write_atomically(path, data, 0o600)
        return len(data)

    def _read(self, path: Path) -> tuple[Int32Array, Any, int]:
        """Return tokens, state and size of a slot's file. Raise Refusal if it is not one for this model."""
        try:
            with path.open("rb") as file:
                if file.readline(len(MAGIC)) != MAGIC:
                    raise Refusal(400, f"{path.name} is no slot's file")
                about, body = json.loads(file.readline(1000)), file.read()
        except OSError as error:
            raise Refusal(400, f"{path.name}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise Refusal(400, f"{path.name} is damaged: save the slot again") from None
        if not isinstance(about, dict) or any(type(about.get(name)) is not int for name in _NUMBERS):
            raise Refusal(400, f"{path.name} is damaged: save the slot again")
        if about.get("model") != fingerprint(Path(self._llama.model_path)):
            raise Refusal(400, f"{path.name} is of another model")
        n = about["tokens"] * 4
        if len(body) != n + about["bytes"] or zlib.crc32(body) != about["crc"]:
            raise Refusal(400, f"{path.name} is damaged: save the slot again")
        tokens, state = np.frombuffer(body[:n], np.int32), np.frombuffer(body[n:], np.uint8)
        limit = self._llama.engine.context if self._llama.engine is not None else self._llama.n_ctx()
        if len(tokens) > limit:
            raise Refusal(400, f"{path.name} has {len(tokens)} tokens and a slot holds {limit}: raise --ctx")
        return tokens, state, path.stat().st_size

    def _replace(self, slot: int, held: Held, tokens: Int32Array, state: Any) -> None:
        """Put a state into a slot. Raise Refusal if the library does not take it; then nothing changes."""
        if (batch := self._batch) is not None:
            try:
                batch.session.replace(slot, tokens, state)
            except InputError as error:
                raise Refusal(400, f"slot {slot}: {error}") from None
            return
        before = _core.sequence_state(self._pointer, 0)
        taken = _core.set_sequence_state(self._pointer, 0, state)
        if not taken:
            _core.set_sequence_state(self._pointer, 0, before)
            tokens = held.tokens
        llama = self._llama
        llama.n_tokens = len(tokens)
        llama.input_ids[: len(tokens)] = tokens
        llama._requires_eval = True
        if llama.engine is not None and llama.engine.session is not None:
            llama.engine.session.adopt(tokens)
        if not taken:
            raise Refusal(400, "the memory does not take this state: save the slot again with these options")


def _begins_well(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False

"""Ids that a call on a GPU would have refused: noted on the device, said by a later call."""

from __future__ import annotations

import torch

MESSAGES = (
    "indices held an id beyond the rows of var; accepted: ids below them. It was skipped",
    "indices held a negative id beside the padding; accepted: ids from 0 on. It was skipped",
)


class Watch:
    """A device's flags that an id was refused, and the host's view of them, which no one waits for."""

    def __init__(self, device: torch.device) -> None:
        self.flags = torch.zeros(len(MESSAGES), dtype=torch.int32, device=device)
        self.seen = torch.zeros(len(MESSAGES), dtype=torch.int32, pin_memory=device.type == "cuda")
        self.copied = torch.cuda.Event() if device.type == "cuda" else None

    def look(self) -> None:
        """Sends the flags to the host."""
        self.seen.copy_(self.flags, non_blocking=True)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(self.flags.device))

    def raise_if_seen(self) -> None:
        if self.copied is not None and not self.copied.query():
            return
        message = next((text for text, seen in zip(MESSAGES, self.seen.tolist(), strict=True) if seen), None)
        if message is not None:
            self.flags.zero_()
            self.seen.zero_()
            raise IndexError(message)


_watches: dict[torch.device, Watch] = {}


def watch_of(device: torch.device) -> Watch:
    if device not in _watches:
        _watches[device] = Watch(device)
    return _watches[device]


def raise_out_of_range(device: torch.device | str = "cuda") -> None:
    """Waits for the device; IndexError if a call since the last error named a row that it would have refused."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    watch = watch_of(device)
    watch.look()
    if watch.copied is not None:
        watch.copied.synchronize()
    watch.raise_if_seen()

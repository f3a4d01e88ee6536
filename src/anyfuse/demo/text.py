"""The demo's text and its vocabulary: English that every CPython ships, cut into word pieces.

The text is the language reference behind `help()`, `pydoc_data.topics`. Its topics repeat whole paragraphs of each
other, so each paragraph is kept once: otherwise the held-out part would hold what the model was trained on.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

HELD_OUT_EVERY = 10
"""One section in so many is held out."""

SECTION_CHARACTERS = 1500
"""Sections are runs of whole paragraphs of at least this length."""

# A word with the space before it, a run of signs, or white space: merges never cross these borders.
_WORDS = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")


def corpus() -> tuple[str, str]:
    """The text to train on and the held-out text. No paragraph is in both."""
    from pydoc_data.topics import topics

    paragraphs = dict.fromkeys(part for name in sorted(topics) for part in re.split(r"\n\n+", topics[name].strip("\n")))
    sections, section = [], ""
    for paragraph in paragraphs:
        section += paragraph + "\n\n"
        if len(section) >= SECTION_CHARACTERS:
            sections.append(section)
            section = ""
    held_out = sections[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [part for i, part in enumerate(sections) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return "".join(training), "".join(held_out)


@dataclass(frozen=True)
class Vocabulary:
    """Byte-pair pieces. Ids 0 … 255 are the bytes, so that every text has an encoding; the rest are merges in order."""

    merges: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return 256 + len(self.merges)

    @cached_property
    def pieces(self) -> list[bytes]:
        pieces = [bytes([byte]) for byte in range(256)]
        for left, right in self.merges:
            pieces.append(pieces[left] + pieces[right])
        return pieces

    @cached_property
    def _ids(self) -> dict[tuple[int, int], int]:
        return {pair: 256 + rank for rank, pair in enumerate(self.merges)}

    def encode(self, text: str) -> Tensor:
        """Ids of the pieces, int64. `decode` gives the text back."""
        known: dict[str, list[int]] = {}
        ids: list[int] = []
        for word in _WORDS.findall(text):
            if word not in known:
                known[word] = self._encode_word(word)
            ids += known[word]
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")

    def _encode_word(self, word: str) -> list[int]:
        symbols = list(word.encode())
        while len(symbols) > 1:
            # The oldest merge first, as they were learned; ids grow with age.
            merged = min(self._ids.get(pair, len(self)) for pair in pairwise(symbols))
            if merged == len(self):
                break
            symbols = _merge(symbols, self.merges[merged - 256], merged)
        return symbols


def build_vocabulary(text: str, size: int) -> Vocabulary:
    """Learns byte pairs until there are `size` pieces, or nothing occurs twice.

    Of equally frequent pairs the one with the smaller ids goes first, so that the same text gives the same vocabulary.

    Raises ValueError for a size below 256.
    """
    if size < 256:
        raise ValueError(f"size is {size}; accepted: 256 or more, since every byte is a piece")
    counted = Counter(_WORDS.findall(text))
    words = [list(word.encode()) for word in counted]
    times = list(counted.values())
    pairs: Counter[tuple[int, int]] = Counter()
    holders: dict[tuple[int, int], set[int]] = {}
    for i, symbols in enumerate(words):
        for pair in pairwise(symbols):
            pairs[pair] += times[i]
            holders.setdefault(pair, set()).add(i)
    # Entries outlive their counts: one is believed only if its count still holds.
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(queue)
    merges: list[tuple[int, int]] = []
    while queue and 256 + len(merges) < size:
        negative, best = heapq.heappop(queue)
        if pairs[best] != -negative:
            continue
        if pairs[best] < 2:
            break
        new = 256 + len(merges)
        merges.append(best)
        changed: set[tuple[int, int]] = set()
        for i in holders.pop(best):
            before, after = words[i], _merge(words[i], best, new)
            words[i] = after
            for pair in pairwise(before):
                pairs[pair] -= times[i]
            for pair in pairwise(after):
                pairs[pair] += times[i]
                holders.setdefault(pair, set()).add(i)
            changed.update(pairwise(before), pairwise(after))
        for pair in changed - {best}:
            heapq.heappush(queue, (-pairs[pair], pair))
    return Vocabulary(tuple(merges))


def _merge(symbols: list[int], pair: tuple[int, int], new: int) -> list[int]:
    merged, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            merged.append(new)
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged

"""Where a turn of the assistant begins and ends in a rendering in which every text is found.

begins    where the prompt for it ends: what the template writes after the last text before it,
          when asked for an answer
ends      with the special tokens that end a turn (turn_ends.py), cut before the token that
          opens messages
"""

import functools
import os
import re
from typing import NamedTuple

from tokenmill.chat.conversations import CannotMask
from tokenmill.chat.marks import Marker, Spans
from tokenmill.chat.segments import Span
from tokenmill.chat.templates import JinjaTemplate
from tokenmill.chat.turn_ends import TurnEnds, find_turn_ends

Tokens = list[tuple[str, int]]  # special tokens, and where each ends


class Place(NamedTuple):
    """Where a text is in a rendering, the number of its mark, and whose it is."""

    begin: int
    end: int
    mark: int
    owner: int  # a message's number; -1, -2 ... of the tools


class Marked(NamedTuple):
    """A conversation in which every text is found."""

    marker: Marker
    text: str
    places: list[Place]
    blocks: Spans
    special: Spans  # those that the template wrote


class Gap(NamedTuple):
    """What is between a turn's first text and the text before it."""

    prompt: str  # where the template was asked for an answer
    written: str

    @property
    def shared(self) -> str:
        """What both begin with."""
        return os.path.commonprefix([self.prompt, self.written])


class TurnBounds:
    """Finds where turns begin and end. `special` finds the special tokens of the tokenizer."""

    def __init__(self, template: JinjaTemplate, special: re.Pattern[str]):
        self._template = template
        self._special = special
        self._ends = functools.cache(functools.partial(find_turn_ends, template, special))

    def find(self, marked: Marked, number: int) -> Span:
        """A message's turn. Raises CannotMask."""
        marker = marked.marker
        text_begin, text_end = _texts_of(marked, number)
        gap_begin = 0
        for place in marked.places:
            if place.owner != number and place.end <= text_begin:
                gap_begin = max(gap_begin, place.end)
        prompt = self._tail(marker, number, prompt=True)
        gap = Gap(prompt, marked.text[gap_begin:text_begin])
        are_parts = isinstance(marker.messages[number].get("content"), list)
        ends = self._ends(are_parts, bool(marker.tools))
        is_after_text = number > 0 and number - 1 in marker.owners
        begin = gap_begin + self._prompt_length(gap, is_after_text, ends.openers)
        return begin, self._end(marked, ends, number, text_end)

    def _prompt_length(self, gap: Gap, is_after_text: bool, openers: set[str]) -> int:
        """The length of the prompt for a turn.

        Where the prompt and the history differ, a turn begins after what both share, at a token's
        or a line's end.
        """
        shared = gap.shared
        if shared == gap.prompt:
            return len(shared)
        cut = self._last_end(shared)
        where = "it cannot be told where a turn of the assistant begins"
        if cut == 0:
            raise CannotMask(f"{where}: its prompt and the history share no line and no token")
        if not is_after_text:  # so the prompt's end may be far from the turn
            raise CannotMask(f"{where}: the message before it has no text")
        doubt = self._doubt(cut, gap, openers)
        if doubt:
            raise CannotMask(f"{where}: {doubt}")
        return cut

    def _last_end(self, shared: str) -> int:
        """Where the last line or special token of a text ends; 0 if none does.

        No line ends in the white space that the text begins with: that is after another text.
        """
        blank = len(shared) - len(shared.lstrip())
        line_end = shared.rfind("\n", blank) + 1
        token_ends = [token.end() for token in self._special.finditer(shared)]
        return max([line_end, *token_ends])

    def _doubt(self, cut: int, gap: Gap, openers: set[str]) -> str:
        """Why a turn may not begin where its prompt and its history begin to differ; "" for no
        reason.
        """
        prompt_rest = gap.prompt[cut:]
        written_rest = gap.written[cut:]
        if not openers.isdisjoint(self._special.findall(prompt_rest)):
            return "the rest of its prompt opens a message"
        shared_end = os.path.commonprefix([prompt_rest[::-1], written_rest[::-1]])[::-1]
        if self._special.search(shared_end):
            return "its prompt and the history differ before a special token that both have"
        is_line_end = gap.prompt[cut - 1] == "\n"
        next_characters = prompt_rest[:1] + written_rest[:1]
        is_in_a_name = any(letter.isalnum() or letter == " " for letter in next_characters)
        if is_in_a_name and not is_line_end:
            return "its prompt and the history differ within a line"
        return ""

    def _end(self, marked: Marked, ends: TurnEnds, number: int, text_end: int) -> int:
        """Where a message's turn ends, whose last text ends at `text_end`."""
        messages = marked.marker.messages
        next_text = len(marked.text)
        for place in marked.places:
            if place.owner != number and place.begin >= text_end:
                next_text = min(next_text, place.begin)
        after: Tokens = []
        for begin, end in marked.special:
            if text_end <= begin and end <= next_text:
                after.append((marked.text[begin:end], end))
        is_last = number + 1 == len(messages)
        expected = ends.last if is_last else ends.earlier
        by_expected = _end_by_expected(after, expected)
        if by_expected is not None:
            return by_expected
        if not messages[number].get("tool_calls"):
            raise CannotMask("a turn of the assistant does not end as the template's turns do")
        by_closer = _end_by_closer(after, expected[-1], ends.openers)
        if by_closer is not None:
            return by_closer
        return self._end_by_tail(marked, number, text_end)

    def _end_by_tail(self, marked: Marked, number: int, text_end: int) -> int:
        """As the template ends the turn where it is the last one."""
        tail = self._tail(marked.marker, number + 1)
        token_ends = [token.end() for token in self._special.finditer(tail)]
        if not token_ends or not marked.text.startswith(tail[: token_ends[-1]], text_end):
            raise CannotMask("it cannot be told where a turn of the assistant with calls ends")
        return text_end + token_ends[-1]

    def _tail(self, marker: Marker, count: int, prompt: bool = False) -> str:
        """What the template writes after the last text of the first `count` messages alone."""
        messages = marker.messages[:count]
        rendering = marker.read(*self._template.render(messages, marker.tools, prompt=prompt))
        text_ends = [end for _, end, _ in rendering.places]
        return rendering.text[max(text_ends, default=0) :]


def _texts_of(marked: Marked, number: int) -> Span:
    """Where the first text of a message begins, and where its last one ends."""
    places: dict[int, Place] = {}  # where each is first: a tool's result may name the call again
    for place in marked.places:
        if place.owner == number:
            places.setdefault(place.mark, place)
    if not places:
        raise CannotMask("a turn of the assistant that is to be learned has no text")
    if list(places) != sorted(places) and _has_silent_result(marked.marker):
        raise CannotMask(
            "a tool's result without text may be within a turn, whose texts are in another order"
        )
    begins = [place.begin for place in places.values()]
    ends = [place.end for place in places.values()]
    return min(begins), max(ends)


def _end_by_expected(after: Tokens, expected: list[str]) -> int | None:
    """Where the tokens that end such turns end, if they are what follows."""
    following = after[: len(expected)]
    if [token for token, _ in following] != expected:
        return None
    return following[-1][1]


def _end_by_closer(after: Tokens, closer: str, openers: set[str]) -> int | None:
    """Where the first such token ends, if no message is opened before it."""
    for token, end in after:
        if token in openers:
            return None
        if token == closer:
            return end
    return None


def _has_silent_result(marker: Marker) -> bool:
    """Whether a tool's result has no text."""
    for number, message in enumerate(marker.messages):
        if message["role"] == "tool" and number not in marker.owners:
            return True
    return False

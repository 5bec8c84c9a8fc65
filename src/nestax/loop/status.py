"""How a run ended."""

import enum


class Status(enum.Enum):
    """How a run ended; the value is the sentence."""

    SUCCESS = "The run ended as asked."
    NONFINITE = "A value became infinite or NaN; the result is the last finite state."
    INTERRUPTED = "The run was interrupted; the result is the last complete chunk."

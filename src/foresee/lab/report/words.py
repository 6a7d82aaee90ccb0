"""Numbers and lists as people read them."""

import math
from collections.abc import Collection, Iterable, Sequence

THIN = "\N{NARROW NO-BREAK SPACE}"
ABSENT = "–"


def count(number: float) -> str:
    """Whole numbers in groups of three, from five digits on.

    >>> count(46875).replace(THIN, " "), count(1200)
    ('46 875', '1200')
    """
    whole = f"{number:.0f}"
    return f"{number:,.0f}".replace(",", THIN) if len(whole.lstrip("-")) > 4 else whole


def digits(number: float, significant: int = 3) -> str:
    """Keep a few significant digits, never in powers of ten; a dash where there is no number.

    >>> digits(0.01234), digits(1.0), digits(math.nan)
    ('0.0123', '1.00', '–')
    """
    if not math.isfinite(number):
        return ABSENT
    if number == 0:
        return "0"
    places = significant - 1 - math.floor(math.log10(abs(number)))
    return f"{number:.{places}f}" if 0 < places < 9 else count(number) if places <= 0 else "0"


def percent(share: float, places: int = 0) -> str:
    """Per cent, with more places where rounding would leave nothing.

    >>> percent(0.05), percent(0.004), percent(0.123, places=1)
    ('5 %', '0.4 %', '12.3 %')
    """
    if not math.isfinite(share):
        return ABSENT
    if share and abs(share) < 0.01:
        return f"{100 * share:.1g} %"
    return f"{100 * share:.{places}f} %"


def part(share: float) -> str:
    """Per cent with two significant digits, and no zeros after them.

    >>> part(0.05), part(0.015), part(0.0025), part(1.25)
    ('5 %', '1.5 %', '0.25 %', '125 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def plus_minus(mean: float, std: float, places: int = 2) -> str:
    """Mean and deviation, or the mean alone where one seed has none.

    >>> plus_minus(97.5, 0.114), plus_minus(97.5, math.nan)
    ('97.50 ± 0.11', '97.50')
    """
    if not math.isfinite(mean):
        return ABSENT
    return f"{mean:.{places}f}" + (f" ± {std:.{places}f}" if math.isfinite(std) else "")


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever is read at a glance.

    >>> duration(42), duration(5400), duration(200000)
    ('42 s', '1.5 h', '2.3 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size or (size < 86400 and seconds >= size):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{digits(seconds, 2)} s"


def ranges(numbers: Iterable[int]) -> str:
    """Name whole numbers shortly.

    >>> ranges([3, 0, 1, 2, 7])
    '0–3, 7'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def few(names: Sequence[str], most: int = 6) -> str:
    """Name some, and say how many more there are.

    >>> few(["a", "b"]), few("abcdefgh", most=3)
    ('a, b', 'a, b, c and 5 more')
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def span(numbers: Collection[float]) -> str:
    """Name the least and the greatest, once if they are equal.

    >>> span([10, 8, 10]), span([10])
    ('8–10', '10')
    """
    low, high = min(numbers), max(numbers)
    return count(low) if low == high else f"{count(low)}–{count(high)}"


def some(number: int, noun: str, plural: str = "") -> str:
    """Count a noun.

    >>> some(1, "seed"), some(2, "seed"), some(0, "entry", "entries")
    ('1 seed', '2 seeds', '0 entries')
    """
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"

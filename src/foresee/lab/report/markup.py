"""The few shapes of HTML that the page is made of. Text from files is escaped here or by `e`."""

from collections.abc import Iterable, Sequence
from html import escape

from foresee.lab.report.palette import Pen


def e(value: object) -> str:
    """Escape text for HTML, in attributes too."""
    return escape(str(value), quote=True)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", kind: str = ""
) -> str:
    """Lay out cells of HTML, scrolling in itself where narrow; the first of a row names it."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(map(_cell, rest))}</tr>' for first, *rest in rows
    )
    title = f"<caption><span>{caption}</span></caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{title}<thead><tr>{heads}</tr>'
        f"</thead><tbody>{lines}</tbody></table></div>"
    )


def td(content: str, kind: str = "", style: str = "") -> str:
    """Make a cell with a class or a style of its own; `table` takes it as it is."""
    return f'<td class="{kind}" style="{style}">{content}</td>'


def swatch(pen: Pen) -> str:
    """Draw a piece of the method's curve."""
    dash = f' stroke-dasharray="{" ".join(map(str, pen.dash))}"' if pen.dash else ""
    return (
        f'<svg class="swatch" viewBox="0 0 18 8" aria-hidden="true"><line x1="1" x2="17" y1="4" '
        f'y2="4" stroke="var(--ink-{pen.ink})"{dash}/></svg>'
    )


def named(method: str, pen: Pen) -> str:
    """Name a method beside its swatch."""
    return f'<span class="method">{swatch(pen)}{e(method)}</span>'


def panel(title: str, *content: str, wide: bool = False) -> str:
    """Put a part of an experiment under its own small heading; nothing if it has no content."""
    body = "".join(content)
    return f'<div class="panel{" wide" * wide}"><h4>{title}</h4>{body}</div>' if body else ""


def note(text: str) -> str:
    """Explain, in small letters."""
    return f'<p class="note">{text}</p>' if text else ""


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f"<td>{content}</td>"

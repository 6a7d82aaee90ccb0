"""What a project asks of its annotators: one choice, of an image or of a text."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from xml.etree import ElementTree

from foresee.errors import InputError
from foresee.learner.record import SKIP, Answer

# What Label Studio sends, as JSON has it.
Json: TypeAlias = dict[str, Any]

_KINDS = ("Image", "Text")
_REMEDY = "foresee label-studio ranks tasks with one <Choices> of one <Image> or <Text>"


@dataclass(frozen=True)
class Form:
    """The labelling interface, as far as a model must know it.

    Args:
        control: the name of <Choices>.
        item: the name of <Image> or <Text>.
        kind: "Image" or "Text".
        field: of a task's data, which holds the text or the address of the image.
        classes: what can be chosen, as annotations hold it.
    """

    control: str
    item: str
    kind: str
    field: str
    classes: tuple[str, ...]

    @classmethod
    def read(cls, config: str) -> "Form":
        """Of a project's label_config; anything but a single choice is refused.

        >>> item = '<Text name="it" value="$text"/>'
        >>> choices = '<Choice value="a"/><Choice value="b"/>'
        >>> Form.read(f'<View>{item}<Choices name="is" toName="it">{choices}</Choices></View>')
        Form(control='is', item='it', kind='Text', field='text', classes=('a', 'b'))
        >>> Form.read(f'<View>{item}<Rating name="r" toName="it"/></View>')
        Traceback (most recent call last):
        ...
        foresee.errors.InputError: the labelling interface has <Rating>: foresee label-studio...
        """
        if "<!" in re.sub(r"<!--.*?-->", "", config, flags=re.DOTALL):
            raise _refused("a document type or entities")
        try:
            tags = list(ElementTree.fromstring(config).iter())
        except ElementTree.ParseError as error:
            raise InputError(f"the labelling interface is no XML ({error}): mend it") from None
        controls = [tag for tag in tags if "toName" in tag.attrib]
        for tag in controls:
            if tag.tag != "Choices":
                raise _refused(f"<{tag.tag}>")
        if len(controls) != 1:
            raise _refused(f"{len(controls)} <Choices>")
        (choices,) = controls
        _check(choices)
        found = [tag for tag in tags if tag.get("name") == choices.get("toName")]
        if len(found) != 1 or found[0].tag not in _KINDS:
            shown = " and ".join(f"<{tag.tag}>" for tag in found) or "nothing"
            raise _refused(f"<Choices> of {shown}")
        item = found[0]
        value = re.fullmatch(r"\$(\w+)", item.get("value", ""))
        if value is None or item.get("valueType", "text") != "text":
            raise _refused(f'<{item.tag}> that is not plainly value="$field"')
        names = [tag.get("alias") or tag.get("value") or "" for tag in choices.iter("Choice")]
        if len(set(names)) < max(2, len(names)) or not all(names):
            raise _refused("<Choices> without two <Choice> of different values")
        control, name = choices.get("name", ""), item.get("name", "")
        return cls(control, name, item.tag, value[1], tuple(names))

    def answer(self, annotations: Iterable[Json]) -> str | Answer | None:
        """What the annotations of a task say: the last label, else skip, else None.

        A label that is no choice any more counts as none.
        """
        found: str | Answer | None = None
        for each in sorted(annotations, key=lambda one: (str(one.get("updated_at")), one["id"])):
            if each.get("was_cancelled"):
                found = found or SKIP
                continue
            for region in each.get("result") or ():
                if region.get("from_name") == self.control and region.get("type") == "choices":
                    chosen = (region["value"].get("choices") or [None])[0]
                    found = chosen if chosen in self.classes else found
        return found

    def source(self, data: Mapping[str, Any]) -> str | None:
        """The text of a task, or the address of its image; None where there is none."""
        value = data.get(self.field)
        if value is None or isinstance(value, dict | list):
            return None
        return str(value) if str(value).strip() else None

    def result(self, label: str | None, probability: float | None) -> list[Json]:
        """A pre-annotation; none where there is no model yet."""
        if label is None or label not in self.classes:
            return []
        region = {"from_name": self.control, "to_name": self.item, "type": "choices"}
        return [{**region, "value": {"choices": [label]}, "score": probability}]


def _check(choices: ElementTree.Element) -> None:
    """Refuse what is more than one choice of a list for the whole task."""
    if choices.get("choice", "single") not in ("single", "single-radio"):
        raise _refused(f'<Choices choice="{choices.get("choice")}">')
    for name in ("perRegion", "perItem"):
        if choices.get(name, "false").lower() == "true":
            raise _refused(f'<Choices {name}="true">')
    if "value" in choices.attrib:
        raise _refused("<Choices value>, choices that differ from task to task,")
    if any(tag.tag == "Choice" for parent in choices.iter("Choice") for tag in parent):
        raise _refused("<Choice> in <Choice>")


def _refused(what: str) -> InputError:
    return InputError(f"the labelling interface has {what}: {_REMEDY}")

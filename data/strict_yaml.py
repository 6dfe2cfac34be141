"""YAML that is read strictly: a key that stands twice in a mapping is an error, where YAML's reader takes the last."""

from typing import Any

import yaml

from data.errors import InputError

_MERGE = "tag:yaml.org,2002:merge"


class _DuplicateKey(ValueError):
    """A key stands twice in one mapping; `line` is that of the second, from 1 on."""

    def __init__(self, key: str, line: int, before: int):
        super().__init__(f"the key '{key}' stands in line {before} already: take one of them out")
        self.line = line


class _Loader(yaml.SafeLoader):
    # Where nodes are composed each mapping comes by once, and what << merges in, which may be overridden, is not there.
    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in lines:
                raise _DuplicateKey(key.value, line, lines[key.tag, key.value])
            lines[key.tag, key.value] = line
        return node


def load(content: bytes, where: object) -> Any:
    """What a YAML file says, of plain types.

    Args:
      content: the file's content, UTF-8, or UTF-16 with a byte order mark.
      where: names the file in messages.

    Raises:
      InputError: it is not YAML, or a key stands twice in a mapping; one line.
    """
    try:
        return yaml.load(content, Loader=_Loader)
    except _DuplicateKey as error:
        raise InputError(f"{where}:{error.line}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: not a YAML file: {error}") from error

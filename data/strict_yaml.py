"""YAML that is read strictly: a key that stands twice in a mapping is an error, where YAML's reader takes the last."""

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class DuplicateKey(ValueError):
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
                raise DuplicateKey(key.value, line, lines[key.tag, key.value])
            lines[key.tag, key.value] = line
        return node


def load(text: str) -> Any:
    """What a YAML text says, of plain types.

    Raises:
      DuplicateKey: a key stands twice in a mapping.
      yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=_Loader)

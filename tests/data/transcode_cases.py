"""What the tests of transcoding share."""

TABLE = "y,c,n,t\n" + "".join(f"{i % 2},{'ab'[i % 2]},{i},{i}|{i + 1}\n" for i in range(40))


def contents(folder):
    """Path -> bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def simple(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)

"""Raw Outbrain files written by hand: 20 documents, days 0 to 14, and what real files have of odd rows.

Display d is of day (d - 1) % 15; the displays of ads 1 to 6 show all of them in turn. Display 31 has no event, ad 60 no
promoted content, documents 19 and 20 no metadata; document 0 is a page; display 5's rows are far apart.
"""

DAY = 86_400_000


def _csv(header, rows):
    return "".join(",".join(str(value) for value in row) + "\n" for row in (header.split(","), *rows))


def _displays():
    """(display, day, page, ads, the one that is clicked)."""
    for display in range(1, 121):
        ads = [(10, 20), (10, 20, 30), (20, 30, 40), (30, 40, 50, 60), (10, 50), (0, 10, 40)][display % 6]
        yield display, (display - 1) % 15, display % 19, ads, ads[(display * 7) % len(ads)]


def write(folder):
    """Writes the files; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    clicks = [(d, ad, int(ad == hit)) for d, _, _, ads, hit in _displays() for ad in ads]
    scattered = [row for row in clicks if row[0] == 5]
    clicks = scattered[1:] + [row for row in reversed(clicks) if row[0] != 5] + scattered[:1]
    places = ["US>CA>807", "US>NY>501", "DE>07", "FR", "", "\\N"]
    events = [
        (d, f"u{d}", page, day * DAY + d * 1000, "\\N" if d == 7 else d % 3 + 1, places[d % 6])
        for d, day, page, _, _ in _displays()
        if d != 31
    ]
    events = [*reversed(events), (999, "u", 3, 5, 1, "US")]
    times = ["2016-06-01 00:00:00", "2016-06-13 10:00:00", "", "1999-01-01 00:00:00"]
    times += ["2030-05-05 00:00:00", "2016-06-20 12:30:00"]
    known = [(n, n % 4 if n % 5 else "", n % 3 if n % 7 else "", time) for n, time in enumerate(times * 3)]
    categories = [(n, 1000 + c, 0.9 - 0.2 * c) for n in range(20) if n != 13 for c in range(n % 4 + 1)]
    topics = [(n, (n + t) % 5, f"0.{5 - t}") for n in range(20) for t in range(5) if t <= n % 5]
    entities = [(n, f"{e:032x}", 0.5) for n in range(20) for e in (n % 3, 7 - n % 2)]
    promoted = [(0, 11, 0, 0), (10, 12, 1, 1), (20, 13, 1, 1), (30, 14, 2, 1), (40, 19, 2, 2), (50, 11, "", "")]
    files = {
        "clicks_train": _csv("display_id,ad_id,clicked", clicks),
        "events": _csv("display_id,uuid,document_id,timestamp,platform,geo_location", events),
        "promoted_content": _csv("ad_id,document_id,campaign_id,advertiser_id", promoted),
        "documents_meta": _csv("document_id,source_id,publisher_id,publish_time", known),
        "documents_categories": _csv("document_id,category_id,confidence_level", categories),
        "documents_topics": _csv("document_id,topic_id,confidence_level", topics),
        "documents_entities": _csv("document_id,entity_id,confidence_level", entities),
    }
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder

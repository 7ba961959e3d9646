"""The HTML report as its reader has it: it draws, tells what the data says, and asks nothing of the network."""

import json

import pytest

PAINTED = """() => {
  const canvas = document.querySelector("#memory-chart canvas");
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = {};
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] === 255) { const key = `#${[0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, "0")).join("")}`; seen[key] = (seen[key] ?? 0) + 1; }
  return seen;
}"""

COLOURS = {"parameters": "#0072b2", "optimizer state": "#009e73", "gradients": "#56b4e9", "inputs": "#f0e442", "activations": "#e69f00"}


def data_of(page) -> dict:
    return json.loads(page.evaluate("document.getElementById('data').textContent"))


@pytest.mark.parametrize("name", ["rescued", "plain", "nothing", "refused", "cuda", "hostile", "full"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_draws_without_a_complaint_or_a_request(open_page, name, scheme):
    opened = open_page(name, scheme, 700 if scheme == "dark" else 1200)
    page = opened.page
    assert page.evaluate("document.getElementById('page').dataset.ready") == "yes"
    page.wait_for_timeout(50)
    assert opened.complaints == []
    assert len(opened.requests) == 1 and opened.requests[0].startswith("file:")
    # Wide tables scroll in themselves, the page does not.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Ink on the ground of the scheme.
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(16, 21, 27)"}[scheme]


@pytest.mark.parametrize("name", ["rescued", "cuda"])
def test_timeline_shows_each_category(open_page, name):
    painted = open_page(name).page.evaluate(PAINTED)
    for category, colour in COLOURS.items():
        assert painted.get(colour, 0) > 200, (category, painted)


def test_live_bytes_alone_where_no_category_is_known(open_page):
    opened = open_page("plain")
    painted = opened.page.evaluate(PAINTED)
    assert not set(COLOURS.values()) & {colour for colour, count in painted.items() if count > 200}
    assert sum(painted.values()) > 500
    assert opened.page.locator(".key button").count() == 0


def test_begins_at_step_one_and_counts_from_one(open_page):
    opened = open_page("rescued")
    run = data_of(opened.page)
    ends = run["step_samples"]["seconds"]
    margin = 0.03 * (ends[-1] - ends[0])
    assert opened.span() == pytest.approx([max(opened.page.evaluate("timeline.begin"), ends[0] - run["per_step"] - margin),
                                           min(opened.page.evaluate("timeline.end"), ends[-1] + margin)], abs=1e-3)
    opened.page.get_by_role("button", name="the whole run").click()
    assert opened.span()[0] == pytest.approx(min(device["timeline"]["seconds"][0] for device in run["devices"])) and opened.span()[1] >= run["seconds"]
    events = table(opened, "Out-of-memory events").locator("tbody tr")
    assert events.nth(0).locator("td").nth(1).inner_text() == str(run["oom_events"][0]["step"] + 1)
    device = run["devices"][0]
    assert f"in step {device['peak_step'] + 1}" in opened.page.locator("section", has_text="At the peak").first.inner_text()


def test_every_line_of_the_charts_has_a_name(open_page):
    text = open_page("rescued").page.locator("section", has_text="Step by step").last.inner_text()
    for name in ("peak", "live after its backward pass", "budget ", "rows in a micro-batch", "rows in the batch"):
        assert name in text, text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_to_share(open_page, tmp_path, scheme):
    opened = open_page("rescued", scheme, 1000)
    with opened.page.expect_download() as download:
        opened.page.get_by_role("button", name="save the chart as a picture").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "koila-cpu.png" and path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 10_000
    # The ground of the scheme, the chart's colours, and no complaint of the page's policy.
    corner, painted = opened.page.evaluate("""() => {
      const made = pictureOf(document.querySelector("#device section"), run.devices[0]);
      const {data} = made.getContext("2d").getImageData(0, 0, made.width, made.height);
      let activations = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i] === 0xe6 && data[i + 1] === 0x9f && data[i + 2] === 0) ++activations;
      return [[data[0], data[1], data[2]], activations];
    }""")
    assert corner == {"light": [255, 255, 255], "dark": [16, 21, 27]}[scheme] and painted > 200
    assert opened.complaints == []


def test_hover_shows_the_exact_values(open_page):
    opened = open_page("cuda")
    plot = opened.plot()
    opened.page.mouse.move(plot["x"] + 0.4 * plot["width"], plot["y"] + 100)
    opened.tip().wait_for(state="visible")
    run = data_of(opened.page)
    timeline = run["devices"][0]["timeline"]
    moment = opened.page.evaluate("timeline.span[0] + 0.4 * (timeline.span[1] - timeline.span[0])")
    index = max(i for i, seconds in enumerate(timeline["seconds"]) if seconds <= moment + 0.02)
    said = opened.tip().inner_text()
    activations = timeline["by_category"][run["categories"].index("activations")]
    nearby = range(index - 2, index + 2)  # a pixel is wider than a sample
    assert any(f"{timeline['live'][i]:,} B" in said and f"{activations[i]:,} B" in said for i in nearby), said
    assert "8,589,934,592 B" in said  # the budget
    opened.page.mouse.move(5, 5)
    opened.tip().wait_for(state="hidden")


def test_hover_at_a_mark_tells_the_event(open_page):
    opened = open_page("refused")
    plot = opened.plot()
    begin, end = opened.span()
    at = (11.2 - begin) / (end - begin)
    opened.page.mouse.move(plot["x"] + at * plot["width"], plot["y"] + 100)
    assert "Refused: out of memory in aten::linear (forward), wanted 48.0 MiB" in opened.tip().inner_text()


def test_zoom_and_pan_move_every_chart(open_page):
    opened = open_page("rescued")
    opened.page.evaluate("timeline.showAll()")
    page, mouse, whole = opened.page, opened.page.mouse, opened.span()
    plot = opened.plot()
    x = lambda part: plot["x"] + part * plot["width"]

    def drag(start, end):
        mouse.move(x(start), plot["y"] + 100)
        mouse.down()
        mouse.move(x(end), plot["y"] + 110, steps=5)
        mouse.up()
        return opened.span()

    length = whole[1] - whole[0]
    near = drag(0.25, 0.5)
    assert near == pytest.approx([whole[0] + 0.25 * length, whole[0] + 0.5 * length], abs=0.01 * length)
    scales = page.evaluate("[...timeline.charts].map((chart) => [chart.scales.x.min, chart.scales.x.max])")
    assert len(scales) == 3 and all(scale == near for scale in scales)

    page.keyboard.down("Shift")
    moved = drag(0.5, 0.75)
    page.keyboard.up("Shift")
    assert moved == pytest.approx([near[0] - 0.0625 * length, near[1] - 0.0625 * length], abs=0.01 * length)

    mouse.move(x(0.5), plot["y"] + 100)
    page.keyboard.down("Control")
    mouse.wheel(0, -120)
    page.keyboard.up("Control")
    page.wait_for_function("timeline.span[1] - timeline.span[0] < 0.24 * timeline.end")
    page.get_by_role("button", name="farther").click()
    page.get_by_role("button", name="earlier").click()
    assert opened.span()[0] < moved[0]
    mouse.dblclick(x(0.5), plot["y"] + 100)
    page.wait_for_function("timeline.span[0] === timeline.begin && timeline.span[1] === timeline.end")

    page.locator("#memory-chart .u-over").focus()
    page.keyboard.press("+")
    assert opened.span()[1] - opened.span()[0] == pytest.approx(0.6 * length)
    page.keyboard.press("0")
    assert opened.span() == whole


def test_a_category_can_be_left_out(open_page):
    opened = open_page("cuda")
    button = opened.page.get_by_role("button", name="activations")
    assert opened.page.evaluate(PAINTED).get(COLOURS["activations"], 0) > 200
    button.click()
    opened.page.wait_for_timeout(50)
    assert opened.page.evaluate(PAINTED).get(COLOURS["activations"], 0) == 0
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    opened.page.wait_for_timeout(50)
    assert opened.page.evaluate(PAINTED).get(COLOURS["activations"], 0) > 200


def test_devices_by_tabs(open_page):
    opened = open_page("cuda")
    tabs = opened.page.get_by_role("tab")
    assert tabs.count() == 2
    assert tabs.nth(0).get_attribute("aria-selected") == "true"
    tabs.nth(1).click()
    assert opened.page.locator("#device h2").first.inner_text() == "Memory over time on cuda:1"
    assert "no budget" in opened.page.locator(".tile", has_text="Peak on cuda:1").inner_text()
    assert opened.page.evaluate("timeline.charts.size") == 1  # no step used it most
    assert opened.page.evaluate(PAINTED).get(COLOURS["activations"], 0) > 200


def table(opened, name):
    return opened.page.get_by_role("region", name=name)


def test_tables_hold_the_rows(open_page):
    opened = open_page("cuda")
    run = data_of(opened.page)
    holders = table(opened, "The largest holders at the peak")
    assert holders.locator("tbody tr").count() == len(run["devices"][0]["holders"])
    row = holders.locator("tbody tr", has_text="aten::gelu")
    assert [row.locator("td").nth(i).inner_text().strip() for i in (0, 4)] == ["activations", "12"]
    stack = row.locator("details pre")
    assert not stack.is_visible()
    row.locator("summary").click()
    assert stack.inner_text() == "train.py:58 in step"

    events = table(opened, "Out-of-memory events").locator("tbody tr")
    assert events.count() == 2
    assert "micro-batches of 16 of 64 rows" in events.nth(1).inner_text()
    assert table(opened, "Sources of memory").locator("tbody tr").count() == 3
    assert table(opened, "Devices").locator("tbody tr").count() == 2
    leak = opened.page.locator(".callout.leak").inner_text()
    assert "12.0 MiB a step since step 1" in leak and "kept by a list named `losses` in finetune.py" in leak


def test_tables_sort(open_page):
    opened = open_page("full")
    events = table(opened, "Out-of-memory events")
    assert events.locator("tbody tr").count() == 1000
    first = events.locator("tbody tr").first.locator("td").first
    assert first.inner_text() == "0.00 s"
    head = events.get_by_role("button", name="At", exact=True)
    head.click()
    assert first.inner_text() == "58:16.50"
    head.click()
    assert first.inner_text() == "0.00 s"
    assert events.locator("th").first.get_attribute("aria-sort") == "ascending"


def test_the_run_in_one_glance(open_page):
    head = open_page("rescued").page
    assert head.title() == "koila: python train.py --batch 512 --epochs 20 --lr 3e-4"
    assert head.locator(".verdict").inner_text().startswith("29 out-of-memory errors rescued")
    assert [tile.replace("\n", " ") for tile in head.locator(".tile").all_inner_texts()][:4] == [
        "Steps 10,000 0.35 s each", "Rescued 29 10.8 s in all", "Refused 0", "Micro-batch in use 192 of 512 rows"]
    assert "KOILA_RULES" in head.locator(".callout").inner_text()

    refused = open_page("refused").page
    assert refused.locator(".verdict").inner_text().startswith("2 out-of-memory errors reached the program, 1 more was rescued.")
    assert "ended without an exit that koila saw" in refused.locator(".verdict").inner_text()
    assert refused.locator(".pill").inner_text() == "cut off"

    nothing = open_page("nothing").page
    assert nothing.locator(".verdict").inner_text() == "Nothing to tell: no step and no memory was seen."
    assert nothing.locator(".empty").is_visible()


def test_strings_of_the_program_are_text(open_page):
    opened = open_page("hostile")
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert page.locator("img, iframe, object, embed, link, base").count() == 0
    assert page.locator("script").count() == open_page("nothing").page.locator("script").count()
    for text in ("</script><script>window.pwned = 1</script>", '<img src=x onerror="window.pwned = 1">', "<!--<script>"):
        assert page.locator(".notes li").get_by_text(text, exact=True).count() == 1
        assert table(opened, "Operators at full batch").get_by_text(text, exact=True).count() == 1
        assert text in page.title() or text in page.locator("h1").inner_text()


def test_the_policy_forbids_what_is_not_of_the_page(open_page):
    """Were a string taken for markup after all, nothing would run and nothing would be fetched."""
    opened = open_page("plain")
    opened.page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.pwned = 1";
      document.body.append(script);
      const image = document.createElement("div");
      image.innerHTML = '<img src="http://127.0.0.1:9/x.png" onerror="window.pwned = 2">';
      document.body.append(image);
    }""")
    fetched = opened.page.evaluate("fetch('http://127.0.0.1:9/x').then(() => 'went out', (error) => String(error))")
    assert "went out" not in fetched
    opened.page.wait_for_timeout(50)
    assert opened.page.evaluate("window.pwned") is None
    assert sum("Content Security Policy" in complaint for complaint in opened.complaints) >= 3, opened.complaints

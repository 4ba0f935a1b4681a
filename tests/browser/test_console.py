"""The console as people use it: in a real browser, on a real server."""

from __future__ import annotations

import re
import shutil

import lance
import pytest
from playwright.sync_api import expect

from lancehouse.lake.recall_notes import PREFIX
from tests.browser.conftest import MANY, Opens, until
from tests.browser.house import ODD_INDEX, ODD_NOTE, ODD_VIEW, Open, indexed_table, measure_recall

DOCS = "#/table/main/library/docs"
TREE = "[role=tree]"
ACTIVE = ".node.active .label"


def node(name: str) -> str:
    return f"{TREE} [role=treeitem]:has(.label:text-is('{name}'))"


# Who looks


def test_a_token_is_asked_for_and_stays_in_the_tab(open_page: Opens, house: Open) -> None:
    page = open_page(name=None)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Token").fill("lh_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".sign-problem")).to_have_text(re.compile("token"))
    page.get_by_label("Token").fill(house.tokens["ada"])
    page.keyboard.press("Enter")
    expect(page.locator(node("main"))).to_be_visible()
    expect(page.locator("#who")).to_have_text("ada")
    token = house.tokens["ada"]
    assert page.evaluate("sessionStorage.getItem('lancehouse.token')") == token
    assert token not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('lancehouse.token')") is None


def test_an_id_and_a_secret_will_do_too(open_page: Opens, house: Open) -> None:
    page = open_page(name=None)
    page.get_by_text("With a client id and secret").click()
    id_, _, secret = house.credential.partition(":")
    page.get_by_label("Client id").fill(id_)
    page.get_by_label("Client secret").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(node("shop"))).to_be_visible()
    expect(page.locator("#who")).to_have_text("guest")
    assert page.locator(f"{TREE} [role=treeitem]").count() == 2


# The tree


def test_the_tree_by_keyboard(open_page: Opens) -> None:
    page = open_page()
    expect(page.locator(node("main"))).to_be_visible()
    page.keyboard.press("t")
    page.keyboard.press("ArrowDown")
    expect(page.locator(ACTIVE)).to_have_text("main")
    page.keyboard.press("ArrowRight")
    expect(page.locator(node("library"))).to_be_visible()
    expect(page.locator(node("main"))).to_have_attribute("aria-expanded", "true")
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator(ACTIVE)).to_have_text("library")
    page.keyboard.press("ArrowRight")
    expect(page.locator(node("docs"))).to_be_visible()
    page.keyboard.type("doc")
    expect(page.locator(ACTIVE)).to_have_text("docs")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="docs")).to_be_visible()
    assert page.evaluate("location.hash") == DOCS
    expect(page.locator(node("docs"))).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(ACTIVE)).to_have_text("library")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(node("docs"))).to_have_count(0)


def test_thousands_of_tables_are_a_few_rows_of_the_page(open_page: Opens) -> None:
    page = open_page("#/ns/main/many")
    expect(page.locator(node("t00000"))).to_be_visible()
    assert page.locator(f"{TREE} [role=treeitem]").count() < 80
    page.locator(TREE).focus()
    page.keyboard.press("End")
    until(page, f"document.querySelector('.tree-rows').clientHeight > {MANY} * 28")
    page.keyboard.press("End")
    expect(page.locator(node("far"))).to_be_visible()
    expect(page.locator(node("many"))).to_have_count(0)
    assert page.locator(f"{TREE} [role=treeitem]").count() < 80


def test_a_link_to_a_table_opens_the_way_to_it(open_page: Opens) -> None:
    last = f"t{MANY - 1:05}"
    page = open_page(f"#/table/main/many/{last}")
    expect(page.locator(node(last))).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("It is declared, and has no data yet")).to_be_visible()


def test_changes_and_dropped_tables(open_page: Opens) -> None:
    page = open_page("#/ns/main/library")
    page.get_by_text("Changes", exact=True).click()
    expect(page.locator(".fold table").get_by_text("table.create").first).to_be_visible()
    page.get_by_text("Dropped tables", exact=True).click()
    expect(page.get_by_text("No dropped table can be restored here")).to_be_visible()


def test_search(open_page: Opens) -> None:
    page = open_page()
    expect(page.locator(node("main"))).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("t0")
    expect(page.locator("#search-results [role=option]")).to_have_count(100)
    expect(page.locator("#search-results")).to_contain_text("There are more matches")
    page.get_by_role("combobox", name="Search tables and namespaces").fill("nothing at all")
    expect(page.locator("#search-results")).to_have_text("Nothing is called “nothing at all”.")
    page.get_by_role("combobox", name="Search tables and namespaces").fill("lib doc")
    expect(page.locator("#search-results [role=option]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="docs")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("x")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator("#search-results")).to_be_hidden()
    assert page.evaluate("document.activeElement === document.body")


def test_a_backend_that_does_not_tell_its_warehouses(open_page: Opens) -> None:
    page = open_page("#/ns/far")
    page.get_by_label("Name of a warehouse or catalog").fill("w")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no connection to 127.0.0.1:9")
    expect(page.locator(node("w"))).to_be_visible()


def test_a_catalog_with_its_own_levels(open_page: Opens) -> None:
    page = open_page("#/ns/shared/lake")
    page.get_by_role("link", name="maps").click()
    expect(page.get_by_role("link", name="roads")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


# Rows


def test_rows_are_filtered_and_paged(open_page: Opens) -> None:
    page = open_page(DOCS)
    rows = page.locator(".grid tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pager")).to_contain_text("51–100 of")
    assert "offset=50" in page.evaluate("location.hash")
    page.keyboard.press("f")
    page.keyboard.type("topic = 'music' AND id < 100")
    page.keyboard.press("Enter")
    expect(page.locator(".pager")).to_contain_text("match")
    expect(rows.first).to_contain_text("music")
    assert "offset" not in page.evaluate("location.hash")
    page.reload()
    expect(page.get_by_label("Filter in SQL")).to_have_value("topic = 'music' AND id < 100")
    expect(rows.first).to_contain_text("music")
    page.get_by_role("button", name="Remove the filter").click()
    expect(rows).to_have_count(50)


def test_a_wrong_filter_is_a_sentence_and_the_rows_stay(open_page: Opens) -> None:
    page = open_page(DOCS)
    expect(page.locator(".grid tbody tr")).to_have_count(50)
    page.get_by_label("Filter in SQL").fill("scor > 1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("There is no column scor; did you mean score?")
    expect(page.get_by_label("Filter in SQL")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".grid tbody tr")).to_have_count(50)
    page.get_by_label("Filter in SQL").fill("score < 0")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No row matches")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_row_closely(open_page: Opens) -> None:
    page = open_page(DOCS)
    page.get_by_role("button", name="Row 2, all columns").click()
    detail = page.get_by_role("complementary", name="Row 2")
    expect(detail).to_contain_text("embedding")
    detail.get_by_role("button", name="Show all").first.click()
    expect(detail.locator(".value.tall")).to_contain_text("What there is to say of")
    page.keyboard.press("Escape")
    expect(detail).to_have_count(0)
    page.get_by_role("button", name="Row 2, all columns").click()
    page.get_by_role("button", name="What is near").click()
    expect(page.locator(".near-list li")).to_have_count(10)


def test_columns_are_chosen(open_page: Opens) -> None:
    page = open_page(DOCS)
    expect(page.locator(".grid thead th")).to_have_count(9)
    page.get_by_text("Columns", exact=True).last.click()
    for name in ("body", "tags", "embedding"):
        page.locator(".chooser").get_by_label(name).uncheck()
    page.get_by_role("button", name="Show these").click()
    expect(page.locator(".grid thead th")).to_have_count(6)


def test_a_part_of_a_table(open_page: Opens) -> None:
    page = open_page(DOCS, name="vera")
    expect(page.locator(".badge", has_text="a part of it")).to_be_visible()
    assert page.locator("[role=tab]").all_inner_texts() == ["Rows", "Schema"]
    expect(page.locator("table.grid tbody tr")).to_have_count(28)  # two of those below 30 are deleted
    assert "On " not in page.locator("table.grid").inner_text()
    page.locator(".row-number").first.click()
    expect(page.locator("dl.record")).to_contain_text("embedding")
    assert page.locator("dl.record button").count() == 0, "there is nothing more to fetch"


def test_text_is_never_markup(open_page: Opens) -> None:
    page = open_page("#/table/main/library/a.b%20%3Codd%3E%20name")
    expect(page.get_by_role("heading", level=1)).to_have_text("a.b <odd> name")
    expect(page.locator(".grid td").nth(1)).to_have_text("<img src=x onerror=alert(1)>")
    expect(page.locator(".grid thead th").last).to_contain_text("<b>")
    assert page.locator(".grid img").count() == 0


# The other tabs


def test_versions_lead_back_in_time(open_page: Opens) -> None:
    page = open_page(f"{DOCS}?tab=versions")
    versions = page.locator(".timeline > li")
    expect(versions).to_have_count(7)
    expect(versions.nth(0)).to_contain_text("robin")
    expect(versions.nth(0)).to_contain_text("More of the same, by hand")
    expect(versions.nth(5)).to_contain_text("spring")
    expect(versions.nth(6)).to_contain_text("ada")
    versions.nth(6).get_by_role("button", name="Rows as of then").click()
    expect(page.locator(".banner")).to_contain_text("You are looking at version 1")
    expect(page.locator(".stats")).to_contain_text("600")
    page.get_by_role("button", name="Back to the latest").click()
    expect(page.locator(".banner")).to_have_count(0)
    page.get_by_role("tab", name="Activity").click()
    expect(page.locator(".plain tbody tr").last).to_contain_text("create")


def test_vectors_and_what_is_near(open_page: Opens) -> None:
    page = open_page(f"{DOCS}?tab=vectors")
    expect(page.locator(".legend .key")).to_have_count(5)
    expect(page.get_by_text("along the two directions of most variance")).to_be_visible()
    spot = page.evaluate(
        "(() => { const box = document.querySelector('canvas').getBoundingClientRect(); return [box.left, box.top] })()"
    )
    found = page.evaluate(
        """() => {
            const canvas = document.querySelector('canvas'), pen = canvas.getContext('2d');
            const { data, width } = pen.getImageData(0, 0, canvas.width, canvas.height);
            const at = data.findIndex((value, place) => place % 4 === 3 && value > 150) >> 2;
            return [at % width, Math.floor(at / width) + 2];
        }"""
    )
    page.mouse.click(spot[0] + found[0], spot[1] + found[1])
    near = page.locator(".near-list li")
    expect(near).to_have_count(10)
    topics = {text.split("topic")[1].split("id")[0] for text in near.all_text_contents()}
    assert len(topics) == 1
    assert "row=" in page.evaluate("location.hash")
    near.nth(3).get_by_role("button", name="From here").click()
    expect(near).to_have_count(10)
    page.get_by_role("button", name="Clear").click()
    expect(near).to_have_count(0)
    page.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(near).to_have_count(10)


def test_pictures(open_page: Opens) -> None:
    page = open_page("#/table/main/library/pictures?tab=images")
    expect(page.locator(".shot")).to_have_count(12)
    expect(page.locator(".shot img")).to_have_count(11)
    until(page, "[...document.querySelectorAll('.shot img')].every((each) => each.naturalWidth === 160)")
    expect(page.locator(".shot .no-image")).to_have_count(1)
    page.locator(".shot").first.click()
    expect(page.get_by_role("complementary", name="Row 1").locator("img")).to_have_count(2)
    page.get_by_role("tab", name="Rows").click()
    expect(page.locator(".grid .thumb img")).not_to_have_count(0)


def test_schema_indices_storage_and_details(open_page: Opens) -> None:
    page = open_page(f"{DOCS}?tab=schema")
    expect(page.locator(".schema tbody tr")).to_have_count(8)
    expect(page.locator(".schema .meter")).to_have_count(8)
    page.get_by_role("tab", name="Schema").press("ArrowRight")
    expect(page.get_by_role("tab", name="Versions")).to_be_focused()
    for number, text in (
        ("5", "IVF_FLAT"),
        ("6", "Fragment"),
        ("7", "Nothing is computed"),
        ("9", "Open it in Python"),
    ):
        page.keyboard.press(number)
        expect(page.locator("#panel")).to_contain_text(text)


def test_how_well_an_index_finds_rows(open_page: Opens, house: Open) -> None:
    with indexed_table(house):
        measure_recall(house, "ada")
        page = open_page("#/table/main/library/archive/measured?tab=indices")
        measured = page.locator(".recall")
        expect(measured).to_have_count(1)
        expect(measured.get_by_role("heading")).to_have_text("Recall of embedding_idx")
        expect(measured).to_contain_text(
            re.compile(r"of the 5 nearest rows a search by this index finds: 20 searches at version \d+,")
        )
        expect(measured.locator("tbody tr")).to_have_count(7)
        expect(measured.locator("tbody tr").first).to_have_text(
            re.compile(r"^defaultdefault[01]\.\d{3}[\d.]+ ms[\d.]+ ms$")
        )
        expect(measured.locator("svg circle")).to_have_count(7)
        assert page.evaluate("[...document.querySelectorAll('.recall circle')].every((each) => each.getBBox().x >= 0)")
        expect(measured).to_contain_text("refine_factor 5")
        expect(measured).not_to_contain_text("older than the index")


def test_what_somebody_wrote_as_measured_recall(open_page: Opens, house: Open) -> None:
    folder = house.folder / "laptop" / "odd.lance"
    dataset = lance.write_dataset({"a": [1], "b": [1]}, folder)
    for column, name in (("a", ODD_INDEX), ("b", "b_idx")):
        dataset.create_scalar_index(column, "BTREE", name=name)
    dataset.update_config({PREFIX + ODD_INDEX: ODD_NOTE, PREFIX + "b_idx": ODD_NOTE.replace("0.5", '"<b>"')})
    page = open_page("#/table/laptop/odd?tab=indices")
    odd = page.locator(".recall")
    expect(odd).to_have_count(1)
    expect(odd.get_by_role("heading")).to_have_text(f"Recall of {ODD_INDEX}")
    expect(odd).to_contain_text("This is older than the index: lancehouse table recall measures it again.")
    expect(odd.locator("svg circle")).to_have_count(1)
    shutil.rmtree(folder)


TEXTS = "#/table/main/words/texts"


def test_what_computes_a_column_and_for_which_rows_it_failed(open_page: Opens) -> None:
    page = open_page(f"{TEXTS}?tab=schema")
    computed = page.locator(".computed-row").first
    expect(computed).to_contain_text("computed by tests.browser.features:length, version 3, from text, since version 2")
    expect(page.locator(".computed-row").nth(1)).to_contain_text("by SQL 'upper(text)', from text, since")
    expect(page.locator(".schema")).not_to_contain_text("lancehouse")
    expect(page.locator(".stats")).to_contain_text("Columns4")
    page.get_by_role("button", name="Show 2 columns that Lancehouse keeps").click()
    expect(page.locator(".schema")).to_contain_text("_lancehouse_length")
    computed.get_by_role("button", name="Count its rows").click()
    expect(computed).to_contain_text("10 filled0 missing2 failed")
    computed.get_by_role("button", name="2 failed").click()
    failures = page.get_by_role("complementary", name="Rows without length")
    expect(failures.locator("li")).to_have_count(2)
    expect(failures.locator("pre").first).to_have_text("ValueError: there is no text <img src=x onerror=alert(1)>")
    failures.get_by_role("link", name="Row id 3").click()
    expect(page.locator(".grid tbody tr")).to_have_count(1)
    expect(page.locator(".grid thead th")).to_have_count(5)
    page.get_by_role("button", name="Remove the filter").click()
    expect(page.locator(".grid tbody tr")).to_have_count(12)
    page.get_by_text("Columns", exact=True).last.click()
    page.locator(".chooser").get_by_label("_lancehouse_length").check()
    page.get_by_role("button", name="Show these").click()
    expect(page.locator(".grid thead th")).to_have_count(6)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lineage_is_drawn_and_said(open_page: Opens, scheme: str) -> None:
    page = open_page("#/table/main/words/split?tab=lineage", color_scheme=scheme)
    expect(page.locator(".badge.view")).to_have_text("materialized view")
    expect(page.locator(".lineage-box")).to_have_count(3)
    expect(page.locator(".lineage-edge")).to_have_count(2)
    said = page.get_by_role("list", name="Lineage").locator("> li")
    expect(said).to_have_count(3)
    expect(said.nth(1)).to_have_text(
        "main.words.split is a view of main.words.texts, made by tests.browser.features:words 1 from text, with id "
        "where id < 9 Rows that failedlong is computed by SQL 'place > 1' from place"
    )
    expect(said.nth(2)).to_contain_text(f"main.words.{ODD_VIEW} is a view of main.words.split, with up = upper(word)")
    assert page.locator("#panel img").count() == 0
    edge, box = (
        page.evaluate(f"getComputedStyle(document.querySelector('{name}')).{part}")
        for name, part in ((".lineage-edge", "stroke"), (".lineage-box.this rect", "fill"))
    )
    assert edge not in ("none", box)
    page.locator(".lineage-box.view").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(ODD_VIEW)
    expect(page.locator(".lineage-box.this .lineage-name")).to_have_text(re.compile("^<img src=x"))
    page.get_by_role("list", name="Lineage").get_by_role("link", name="main.words.texts").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("texts")
    expect(page.locator(".lineage-box")).to_have_count(4)
    page.set_viewport_size({"width": 400, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_rows_that_a_view_leaves_out(open_page: Opens) -> None:
    page = open_page("#/table/main/words/split?tab=lineage")
    page.get_by_role("button", name="Rows that failed").click()
    failures = page.get_by_role("complementary", name="Rows that the view leaves out")
    expect(failures.locator("li")).to_have_count(2)
    expect(failures.locator("pre").first).to_have_text("ValueError: there are no words <img src=x onerror=alert(1)>")
    failures.get_by_role("link", name="Row id 3").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("texts")
    expect(page.locator(".grid tbody tr")).to_have_count(1)


def test_lineage_names_only_what_the_reader_may_read(open_page: Opens) -> None:
    page = open_page("#/table/main/words/public/ids?tab=lineage", name="public")
    expect(page.locator(".lineage-box")).to_have_count(1)
    expect(page.locator("#panel")).to_contain_text("a table that is gone, or that you may not read")
    expect(page.locator("#panel")).not_to_contain_text("texts")


def test_an_iceberg_table_and_a_view(open_page: Opens) -> None:
    page = open_page("#/table/main/shop/orders?tab=versions")
    expect(page.locator(".badge").first).to_have_text("Iceberg table")
    expect(page.locator(".timeline > li")).to_have_count(2)
    page.locator(node("sales")).click()
    expect(page.locator("pre.code")).to_contain_text("FROM shop.orders")
    page.get_by_role("tab", name="Schema").click()
    expect(page.locator(".schema tbody tr")).to_have_count(2)


@pytest.mark.parametrize(
    ("hash", "text"),
    [
        ("#/table/main/library/nope", "Table does not exist: library.nope"),
        (f"{DOCS}?version=99", "99"),
        ("#/ns/main/nowhere", "Namespace does not exist: nowhere"),
        ("#/ns/main/empty", "There is no table in here yet"),
        ("#/%E0%A4%A/what", "Choose where to look"),
    ],
)
def test_what_is_not_there(open_page: Opens, hash: str, text: str) -> None:
    page = open_page(hash)
    expect(page.locator("#main")).to_contain_text(text)


# The look of it


def test_dark_and_light(open_page: Opens) -> None:
    page = open_page(color_scheme="dark")
    expect(page.locator(node("main"))).to_be_visible()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("d")
    light = page.evaluate(background)
    assert light != dark
    page.reload()
    expect(page.locator(node("main"))).to_be_visible()
    assert page.evaluate(background) == light
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(background) == dark


def test_a_narrow_window(open_page: Opens) -> None:
    page = open_page(DOCS, viewport={"width": 400, "height": 700})
    expect(page.locator(".grid tbody tr")).to_have_count(50)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    expect(page.locator(TREE)).to_be_hidden()
    page.get_by_role("button", name="Show the tree").click()
    page.locator(node("pictures")).click()
    expect(page.get_by_role("heading", name="pictures")).to_be_visible()
    expect(page.locator(TREE)).to_be_hidden()
    for tab in ("Schema", "Versions", "Images", "Storage", "Details"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate("document.documentElement.scrollWidth") == 400, tab


def test_help_and_names_for_everything(open_page: Opens) -> None:
    page = open_page(DOCS)
    expect(page.locator(".grid tbody tr")).to_have_count(50)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)
    nameless = """[...document.querySelectorAll('button, input, select, a, [role=tab], [role=treeitem]')]
        .filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length))
        .map((each) => each.outerHTML)"""
    assert page.evaluate(nameless) == []


def test_the_server_goes_away(open_page: Opens) -> None:
    page = open_page(DOCS)
    expect(page.locator(".grid tbody tr")).to_have_count(50)
    page.context.set_offline(True)
    page.get_by_role("tab", name="Storage").click()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".strip")).to_be_visible()

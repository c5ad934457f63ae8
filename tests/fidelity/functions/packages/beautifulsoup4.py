"""A page."""

from bs4 import BeautifulSoup

PAGE = "<html><body><p class='x'>One <b>two</b></p><a href='/c'>link</a></body></html>"


def work():
    soup = BeautifulSoup(PAGE, "html.parser")
    return [soup.select_one("p.x b").text, [one["href"] for one in soup.find_all("a")], soup.p.get_text(" ", strip=True)]


def fail():
    BeautifulSoup(PAGE, "no such parser")

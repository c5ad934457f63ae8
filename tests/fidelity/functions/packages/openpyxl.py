"""A workbook, written and read again."""

import io

from openpyxl import Workbook, load_workbook


def work():
    book = Workbook()
    book.active.append(["a", 1, 2.5])
    book.active["A2"] = "=SUM(B1:C1)"
    file = io.BytesIO()
    book.save(file)
    return [[cell.value for cell in row] for row in load_workbook(file).active.iter_rows()]


def fail():
    load_workbook(io.BytesIO(b"no workbook"))

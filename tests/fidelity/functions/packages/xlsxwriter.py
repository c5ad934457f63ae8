"""A workbook with a chart."""

import io
import zipfile

import xlsxwriter


def work():
    file = io.BytesIO()
    with xlsxwriter.Workbook(file) as book:
        sheet = book.add_worksheet("own")
        sheet.write_row(0, 0, ["a", 1, 2.5], book.add_format({"bold": True}))
        chart = book.add_chart({"type": "line"})
        chart.add_series({"values": "=own!$B$1:$C$1"})
        sheet.insert_chart("D1", chart)
    return zipfile.ZipFile(file).namelist()


def fail():
    xlsxwriter.Workbook(io.BytesIO()).add_worksheet("a" * 40)

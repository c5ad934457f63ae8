"""A document, written and read again."""

import io

from pypdf import PdfReader, PdfWriter


def work():
    writer = PdfWriter()
    writer.add_blank_page(100, 200)
    writer.add_metadata({"/Title": "own"})
    file = io.BytesIO()
    writer.write(file)
    reader = PdfReader(file)
    return [len(reader.pages), reader.metadata.title, [float(side) for side in reader.pages[0].mediabox]]


def fail():
    PdfReader(io.BytesIO(b"no document"))

"""Numbers with all digits."""

from decimal import Decimal

import simplejson


def work():
    text = simplejson.dumps({"a": Decimal("1.10"), "b": [None, "ü"]}, use_decimal=True)
    return [text, str(simplejson.loads(text, use_decimal=True)["a"]), simplejson.encoder.c_make_encoder is not None]


def fail():
    simplejson.loads('{"a": ')

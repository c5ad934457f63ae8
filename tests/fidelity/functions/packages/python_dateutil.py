"""Dates, rules and time zones."""

from dateutil import parser, relativedelta, rrule, tz

BERLIN = tz.gettz("Europe/Berlin")


def work():
    begin = parser.parse("2 January 2026 3pm")
    later = begin.replace(tzinfo=BERLIN) + relativedelta.relativedelta(months=+1)
    return [later.isoformat(), [one.isoformat() for one in rrule.rrule(rrule.DAILY, count=2, dtstart=begin)]]


def fail():
    parser.parse("no date")

"""An empty function, as Pilotlight's worker calls it."""


def handler(event, context):
    return ""

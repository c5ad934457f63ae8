"""The first step: has the clip from the store, and hands it to the decoder."""

from passing import hand_over


def handler(event, context):
    return hand_over(event, event["decode"], "clip", context.inputs["clip"])

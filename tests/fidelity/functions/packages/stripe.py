"""A client of the module, and the signature of an event. Nothing is sent."""

import stripe

CLIENT = stripe.StripeClient("sk_test_own")


def work():
    signature = stripe.WebhookSignature._compute_signature("1.{}", "secret")
    customer = stripe.Customer.construct_from({"id": "cus_1", "name": "a"}, "key")
    return [signature, customer.name, type(CLIENT).__name__]


def fail():
    stripe.Webhook.construct_event("{}", "t=1,v1=wrong", "secret")

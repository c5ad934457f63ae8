"""A client and a signed URL. Nothing is sent."""

import boto3

S3 = boto3.client("s3", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b")
TABLE = boto3.resource("dynamodb", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b").Table("t")


def work():
    url = S3.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "key"})
    return [url.partition("?")[0], S3.meta.endpoint_url, TABLE.name, sorted(S3.meta.service_model.operation_names)[:3]]


def fail():
    S3.put_object(Bucket="bucket")

"""SeBS's storage API over boto3: `download`, `upload`, `download_stream`, `upload_stream`."""

import io
import os
import uuid

import boto3


class storage:  # noqa: N801 - SeBS calls it so.
    instance = None

    def __init__(self):
        self.client = boto3.client("s3")

    @staticmethod
    def unique_name(name):
        name, extension = os.path.splitext(name)
        return f"{name}.{uuid.uuid4().hex[:8]}{extension}"

    def upload(self, bucket, file, filepath):
        key = storage.unique_name(file)
        self.client.upload_file(filepath, bucket, key)
        return key

    def download(self, bucket, file, filepath):
        self.client.download_file(bucket, file, filepath)

    def upload_stream(self, bucket, file, data):
        key = storage.unique_name(file)
        self.client.upload_fileobj(data, bucket, key)
        return key

    def download_stream(self, bucket, file):
        data = io.BytesIO()
        self.client.download_fileobj(bucket, file, data)
        return data.getbuffer()

    @staticmethod
    def get_instance():
        if storage.instance is None:
            storage.instance = storage()
        return storage.instance

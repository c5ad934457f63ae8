"""SeBS's storage API in containers, where boto3 has no drop-in: what the initscript has fetched comes from its messages."""

import pilotlight
import storage_s3


class storage(storage_s3.storage):  # noqa: N801 - SeBS calls it so.
    instance = None

    def download(self, bucket, file, filepath):
        try:
            view = pilotlight.init.object(file)
        except pilotlight.init.NoMessage:
            return super().download(bucket, file, filepath)
        with open(filepath, "wb") as into:
            into.write(view)

    def download_stream(self, bucket, file):
        try:
            return pilotlight.init.object(file)
        except pilotlight.init.NoMessage:
            return super().download_stream(bucket, file)

    @staticmethod
    def get_instance():
        if storage.instance is None:
            storage.instance = storage()
        return storage.instance

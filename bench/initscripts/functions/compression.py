"""Some objects become an archive (SeBS 311)."""

import os
import shutil
import tempfile

import storage
from clock import Clock

client = storage.storage.get_instance()


def handler(event):
    bucket, keys = event["bucket"], event["object"]["keys"]
    with tempfile.TemporaryDirectory() as place:
        clock = Clock()
        folder = os.path.join(place, "files")
        os.mkdir(folder)
        for key in keys:
            client.download(bucket, key, os.path.join(folder, os.path.basename(key)))
        download = clock.lap()
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        archive = shutil.make_archive(os.path.join(place, "archive"), "zip", root_dir=folder)
        compute = clock.lap()
        name = client.upload(bucket, "output/archive.zip", archive)
        upload = clock.lap()
    measurement = {"download_time": download, "download_size": size, "upload_time": upload, "compute_time": compute}
    return {"result": {"bucket": bucket, "key": name}, "measurement": measurement}

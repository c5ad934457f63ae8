"""The packages that are compared: much downloaded ones that a function would import. Each has a file in `functions/packages`."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """`requirement` is the line of requirements.txt; empty: only the standard library."""

    name: str
    requirement: str

    @property
    def file(self) -> str:
        return re.sub(r"[-.]", "_", self.name.lower())

    @property
    def function(self) -> str:
        return self.file.replace("_", "-")

    @property
    def version(self) -> str:
        return self.requirement.partition("==")[2]


def _package(requirement: str) -> Package:
    return Package(re.split(r"[\[=]", requirement)[0], requirement)


# A function that imports no package. The others are compared with it.
PLAIN = Package("plain", "")
STANDARD_LIBRARY = Package("stdlib", "")

PACKAGES = [
    _package(requirement)
    for requirement in """
boto3==1.44.5
requests==2.34.2
urllib3==2.8.0
pydantic==2.14.3
cryptography==50.0.2
PyYAML==6.0.3
numpy==2.4.6
python-dateutil==4.0.0
typing-extensions==4.16.0
packaging==26.3
certifi==2026.10.18
charset-normalizer==3.5.2
idna==3.20
six==1.17.0
attrs==26.1.0
click==8.5.1
Jinja2==3.1.6
MarkupSafe==3.0.4
protobuf==7.36.2
PyJWT==2.15.1
pytz==2026.6
jmespath==1.1.0
wrapt==2.5.2
tenacity==9.2.1
aiohttp==3.14.5
aiobotocore==3.10.0
fsspec==2026.9.0
s3fs==2026.9.0
pandas==3.1.1
SQLAlchemy==2.1.9
httpx==0.28.1
anyio==4.16.0
fastapi==0.165.0
mangum==0.22.0
Flask==3.1.3
Django==5.2.19
google-auth==2.62.2
google-api-core==2.44.0
google-cloud-storage==3.17.1
grpcio==1.85.1
psutil==7.2.2
pyarrow==26.0.1
scipy==1.17.1
scikit-learn==1.9.1
pillow==13.0.0
lxml==6.1.3
beautifulsoup4==4.15.0
openpyxl==3.1.5
xlsxwriter==3.3.1
tabulate==0.10.0
rich==15.0.0
Pygments==2.21.0
Markdown==3.11.3
psycopg2-binary==2.9.13
psycopg[binary]==3.3.9
PyMySQL==1.2.4
asyncpg==0.32.0
redis==8.1.0
pymongo==4.20.0
elasticsearch==9.5.1
opensearch-py==3.2.0
kafka-python==3.0.12
paramiko==5.1.0
bcrypt==5.0.0
PyNaCl==1.6.2
argon2-cffi==25.1.0
pycryptodome==4.4.0
oauthlib==4.0.1
requests-oauthlib==2.0.0
Authlib==1.9.9
jsonschema==4.26.0
orjson==3.13.0
simplejson==4.3.0
msgpack==1.2.4
marshmallow==4.4.0
aws-lambda-powertools==3.37.0
aws-xray-sdk==2.15.0
sentry-sdk==2.75.0
opentelemetry-sdk==1.45.2
prometheus-client==0.26.0
structlog==26.1.0
python-json-logger==4.2.0
stripe==16.1.0
slack-sdk==3.47.0
openai==3.54.0
anthropic==2.12.0
tiktoken==0.14.0
azure-storage-blob==12.31.1
azure-identity==1.27.0
networkx==3.6.1
matplotlib==3.11.2
polars==2.1.0
duckdb==2.0.0
onnxruntime==1.32.0
opencv-python-headless==5.0.0.93
pypdf==7.1.0
Faker==40.54.0
gevent==26.9.0
zstandard==0.25.0
websockets==17.4
""".split()
]

# These draw random values, and are installed in a few seconds: they are compared in every run of the tests.
OFTEN = [
    STANDARD_LIBRARY,
    *(
        package
        for package in PACKAGES
        if package.name
        in {
            "cryptography",
            "Faker",
            "grpcio",
            "numpy",
            "psycopg2-binary",
            "pycryptodome",
            "PyJWT",
            "pymongo",
            "redis",
        }
    ),
]

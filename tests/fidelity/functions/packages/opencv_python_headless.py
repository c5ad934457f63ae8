"""A picture: edges, a blur and its JPEG."""

import hashlib

import cv2
import numpy

PICTURE = numpy.zeros((200, 200, 3), numpy.uint8)
cv2.rectangle(PICTURE, (50, 50), (150, 150), (255, 255, 255), -1)


def work():
    edges = cv2.Canny(cv2.GaussianBlur(PICTURE, (5, 5), 0), 50, 150)
    done, coded = cv2.imencode(".png", edges)
    return [int(edges.sum()), done, hashlib.sha256(cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE).tobytes()).hexdigest()]


def fail():
    cv2.cvtColor(numpy.zeros((1, 1), numpy.uint8), cv2.COLOR_BGR2GRAY)

"""Verifies messages with dkimpy: dkimpy_verify.py RECORDS FILE...

A line for each signature, with the file's name, the place of the signature and a word. Needs Debian's python3-dkim and
python3-nacl.
"""

import re
import sys

import dkim

RECORDS = {}
for line in open(sys.argv[1]):
    if line[0] not in "#!":
        name = line.split()[0].encode()
        RECORDS[name] = "".join(re.findall('"([^"]*)"', line)).encode()


def key_record(name, timeout=5):
    return RECORDS.get(name)


for path in sys.argv[2:]:
    with open(path, "rb") as file:
        message = file.read()
    for index in range(message.count(b"DKIM-Signature:")):
        good = dkim.DKIM(message).verify(index, dnsfunc=key_record)
        print(path, index, "pass" if good else "fail")

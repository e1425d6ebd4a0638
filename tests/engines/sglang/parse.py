"""SGLang's own argument parser, without the resolution behind it: the judge of what kda doctor says of malformed words.

usage: parse.py < LINES   one JSON list of words a line; prints {"accepted": true}, {"text": refusal} or {"help": true} a line
       parse.py --options   prints [[names], words it takes, choices] of every option
"""
import argparse
import contextlib
import io
import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""
from sglang.srt.server_args import ServerArgs  # noqa: E402


class Refused(Exception):
    pass


def refuse(text):
    raise Refused(text)


parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
parser.error = refuse

if sys.argv[1:] == ["--options"]:
    print(json.dumps([[action.option_strings, str(action.nargs), [str(c) for c in action.choices or []]]
                      for action in parser._actions]))
    sys.exit(0)
for line in sys.stdin:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(json.loads(line))
        answer = {"accepted": True}
    except Refused as error:
        answer = {"text": str(error)}
    except SystemExit:
        answer = {"help": True}
    print(json.dumps(answer), flush=True)

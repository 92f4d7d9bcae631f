"""Is the application of examples/celery_app.py whose message broker is a folder (CELERY_FOLDER), so without a server.

As a program, it calls its tasks: `python celery_files.py TASK COUNT PREFIX`.
"""

import os
import signal
import sys

from celery_app import TOPIC, app, producer, publish, publish_and_wait

FOLDER = os.environ["CELERY_FOLDER"]

app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": f"{FOLDER}/messages",
        "data_folder_out": f"{FOLDER}/messages",
        "control_folder": f"{FOLDER}/control",
    },
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@app.task(name="publish_and_die")  # when this file is the program, too
def publish_and_die(text: str) -> None:
    """Publish the text, and end at once as by the kernel's lack of memory."""
    producer.send(TOPIC, text.encode())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    tasks = {"publish": publish, "publish_and_wait": publish_and_wait, "publish_and_die": publish_and_die}
    task = tasks[sys.argv[1]]
    for number in range(int(sys.argv[2])):
        task.delay(f"{sys.argv[3]} {number}")

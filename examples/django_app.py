"""Runs as an application of Django in one file: it publishes an order when its database transaction has committed.

python examples/django_app.py    # makes the table
KAFKA=localhost:9092 gunicorn --preload --workers 4 --chdir examples django_app:application
"""

import os
from functools import partial

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import IntegrityError, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from cyproducer import KafkaProducer

TOPIC = os.environ.get("TOPIC", "events")

# In a project of several files, the producer stands in a module that the views import.
# A request may wait for Kafka for less time than the server waits for a worker: 30 s with gunicorn.
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"), max_block_ms=10_000)

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", "orders.sqlite3")}
settings.configure(ALLOWED_HOSTS=["*"], DATABASES={"default": database}, ROOT_URLCONF=__name__)
application = get_wsgi_application()


class Order(models.Model):
    """An order. Its text is unique."""

    text = models.TextField(unique=True)

    class Meta:
        app_label = "shop"


def show(request: HttpRequest) -> JsonResponse:
    """Show which worker answers."""
    return JsonResponse({"pid": os.getpid()})


def publish(request: HttpRequest) -> JsonResponse:
    """Publish the body, and do not wait for Kafka's answer."""
    producer.send(TOPIC, request.body)
    return JsonResponse({"pid": os.getpid()}, status=202)


def publish_and_wait(request: HttpRequest) -> JsonResponse:
    """Publish the body, and answer with its place in the log."""
    record = producer.send(TOPIC, request.body).result(timeout=15)
    return JsonResponse({"pid": os.getpid(), "partition": record.partition, "offset": record.offset}, status=201)


def buy(request: HttpRequest) -> JsonResponse:
    """Store the order. Publish it if the transaction is committed, and not if it is rolled back."""
    try:
        with transaction.atomic():
            transaction.on_commit(partial(producer.send, TOPIC, request.body))
            Order.objects.create(text=request.body.decode())
    except IntegrityError:
        return JsonResponse({"error": "the order is there already"}, status=409)
    return JsonResponse({"pid": os.getpid()}, status=201)


urlpatterns = [path("", show), path("event", publish), path("order", publish_and_wait), path("buy", buy)]

if __name__ == "__main__":
    with connection.schema_editor() as editor:
        editor.create_model(Order)

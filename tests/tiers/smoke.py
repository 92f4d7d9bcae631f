"""The tests of the tier `smoke`: one for each promise, each guide, Spark, a secured listener and the end of senders.

They share one Kafka node, so none of them may pause or end it. `CONTRIBUTING.md` names the further ones.
"""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

SMOKE = {
    "P1": ["integration/producer/test_producer_kafka.py::test_a_killed_process_loses_nothing_that_send_accepted"],
    "P2": [
        "integration/sender/test_supervisor.py::test_killed_under_load[sender]",
        "usage/test_usage_sender_lost.py::test_under_load_outcomes_are_true",
    ],
    "P3": [
        "hostile/test_hostile.py::test_correct_front_ends_lose_nothing_beside_the_fuzzer",
        "integration/sender/test_front_end_death.py::test_stopped_is_not_dead",
    ],
    "P4": ["integration/producer/test_producer_kafka.py::test_memory_smaller_than_what_is_sent"],
    "P5": [
        "integration/sender/test_failures_kept.py::test_failures_outlive_their_sender",
        "usage/test_usage_multiprocessing.py::test_the_end_of_a_process_loses_nothing[exits]",
    ],
    "P6": ["usage/test_usage_fork.py::test_children_that_end_in_every_way[os.fork()]"],
    "P7": ["integration/producer/test_producer_kafka.py::test_order_within_a_key"],
    "P8": [
        "usage/test_usage_multiprocessing.py::test_children_of_an_unused_producer_share_one_sender_and_one_connection"
    ],
    "delivery: the supervisor is killed": ["integration/sender/test_supervisor.py::test_killed_under_load[supervisor]"],
    "delivery: an upgrade": ["integration/sender/test_sender_upgrade.py::test_replaced_twice_under_load"],
    "delivery: the sender is told to end": [
        "integration/sender/test_sender_drain.py::test_records_that_are_sent_meanwhile_are_in_the_log_once"
    ],
    "guides: all examples": ["usage/test_docs_examples.py::test_the_examples_run"],
    "guides: arrays": ["integration/producer/test_bulk.py::test_table_with_every_column_over_several_topics"],
    "guides: asyncio": ["usage/test_usage_asyncio.py::test_two_loops_in_two_threads"],
    "guides: Celery": ["usage/test_usage_celery.py::test_each_pool_publishes_through_one_sender[prefork]"],
    "guides: data tools": ["usage/test_usage_data_tools.py::test_the_rows_of_each_library_arrive"],
    "guides: errors": ["usage/test_usage_interrupts.py::test_uncaught_ctrl_c_ends_the_program_and_loses_nothing"],
    "guides: interceptors": [
        "integration/producer/test_extensions_kafka.py::test_interceptors_see_each_record_once_and_its_place"
    ],
    "guides: job runners": ["job_runners/test_dask.py::test_the_workers_share_one_sender"],
    "guides: logging": ["usage/test_usage_logging.py::test_what_was_logged_before_kill_arrives"],
    "guides: multiprocessing": ["usage/test_usage_multiprocessing.py::test_workers_of_each_start_method[spawn]"],
    "guides: partitions": [
        "integration/producer/test_extensions_kafka.py::test_round_robin_spreads_records_and_rows_evenly"
    ],
    "guides: secured clusters, guides: SASL": [
        "integration/security/test_listeners_kafka.py::test_each_mechanism[SASL_SSL-SCRAM-SHA-512]"
    ],
    "guides: TLS": ["integration/security/test_listeners_kafka.py::test_a_client_certificate[two files]"],
    "guides: OAuth": ["integration/security/test_token_provider.py::test_each_form_of_a_provider"],
    "guides: cluster recipes": ["integration/security/test_recipes.py::test_each_recipe_is_tried"],
    "guides: Spark, a batch": ["spark/test_spark_batch.py::test_the_example"],
    "guides: Spark exactly once": [
        "spark/test_spark_exactly_once.py::test_each_micro_batch_is_written_once_and_an_empty_one_too"
    ],
    "guides: Spark Kafka": [
        "spark/test_spark_kafka_source.py::test_a_batch_copies_a_topic_as_sparks_own_sink_does_and_keeps_the_time"
    ],
    "guides: Spark secured": ["spark/test_spark_secured.py::test_files_are_those_of_the_hosts"],
    "guides: testing": ["usage/test_usage_pytest.py::test_the_fixtures[2]"],
    "guides: transactions, guides: consume transform produce": [
        "usage/test_usage_transactions.py::test_the_examples[confluent-kafka]"
    ],
    "guides: tracing": ["usage/test_usage_tracing.py::test_each_record_has_a_span_and_carries_its_context"],
    "guides: web frameworks": ["usage/test_usage_frameworks.py::test_a_killed_worker_loses_nothing[fastapi-uvicorn]"],
    "guides: web workers": [
        "usage/test_usage_web.py::test_every_request_arrives_over_one_sender_and_one_connection[gunicorn]"
    ],
}


def arguments() -> list[str]:
    """Return the tests as arguments of pytest, with absolute paths."""
    return [f"{TESTS}/{test}" for tests in SMOKE.values() for test in tests]

"""Publishes and reads the metadata snapshot: what a sender knows of the cluster, for its front-ends. See snapshot.h.

A new or changed topic costs the writer and each reader constant work, however many topics there are. A reader looks up
a topic by name once. Later it reads only changed rows of topics that it uses.
"""


cdef inline uint8_t _share(uint8_t has_leader, uint8_t former) noexcept nogil:
    """Return the new CYP_SHARE byte of a partition. `has_leader`: from now on; `former`: its byte so far."""
    if not has_leader:
        return CYP_SHARE_NONE
    return former if former != CYP_SHARE_NONE else CYP_SHARE_FULL


cdef bytes _shortened(bytes text, Py_ssize_t most):
    """Return UTF-8 text of at most `most` bytes: the words that fit, and "..."."""
    cdef bytes begin
    if len(text) <= most:
        return text
    begin = text[:most - 3]
    return begin[:max(begin.rfind(b" "), 0) or most - 3].decode(errors="ignore").encode() + b"..."


def snapshot_bytes() -> int:
    """Return the size of a snapshot region in bytes."""
    cdef SnapshotGeometry geometry
    snapshot_geometry(&geometry)
    return geometry.region_bytes


cdef class Snapshot:
    """The read access that both sides have."""

    cdef object _lay_out(self, Region region):
        snapshot_geometry(&self.geometry)
        self.region = region
        self.header = <cyp_snapshot_header *>region.base
        self.rows = <cyp_topic_row *>(region.base + self.geometry.topics_offset)
        self.index = <uint64_t *>(region.base + self.geometry.index_offset)
        self.changes = <uint64_t *>(region.base + self.geometry.changes_offset)
        self.leaders = region.base + self.geometry.leaders_offset

    cdef object _check_layout(self):
        if self.header.magic != CYP_SNAPSHOT_MAGIC or self.header.layout_version != CYP_LAYOUT_VERSION:
            raise ValueError("the descriptor is not a metadata snapshot of this layout")

    cdef uint32_t number_of(self, bytes name, uint32_t *place, uint32_t *generation) noexcept:
        """Return the topic's number, and set `generation`; CYP_NONE if it has none. Set `place`: see topic_find."""
        return topic_find(self.index, self.rows, name, <uint32_t>len(name), place, generation)

    cdef tuple row(self, uint32_t number):
        """Return a topic's (error code, one byte per partition: 1 = leader known); None without current metadata.

        A reader must check the generation of the number after this.
        """
        cdef cyp_topic_row *row = &self.rows[number]
        cdef uint64_t word = topic_load(row)
        cdef uint32_t count = topic_partitions(word), at, i
        cdef bytes leaders
        cdef uint8_t *copy
        if not word & CYP_TOPIC_KNOWN or word & CYP_TOPIC_FORGOTTEN:
            return None
        at = <uint32_t>topic_leaders(row)
        leaders = PyBytes_FromStringAndSize(NULL, count)
        copy = <uint8_t *>PyBytes_AS_STRING(leaders)
        for i in range(count):
            copy[i] = load_relaxed8(&self.leaders[at + i]) != CYP_SHARE_NONE
        return topic_error(word), leaders

    cdef const uint8_t *shares(self, uint32_t number) noexcept:
        """Return the CYP_SHARE bytes of a topic's partitions: at least as many as `row` has returned before."""
        return self.leaders + <uint32_t>topic_leaders(&self.rows[number])

    cdef uint32_t brokers(self) noexcept:
        return load_relaxed32(&self.header.brokers)

    cdef uint32_t auth_failures(self) noexcept:
        return load_acquire32(&self.header.auth_failures)  # pairs with SnapshotWriter.publish_auth_failure

    cdef str last_error(self):
        # If two texts are published while one is copied, the copy is a mixture. Only people read the text.
        cdef uint64_t text = load_acquire(&self.header.text)  # pairs with the release in SnapshotWriter.describe
        cdef const char *at = <const char *>self.header.texts + (text & 1) * CYP_SNAPSHOT_ERROR_BYTES
        return at[:CYP_SNAPSHOT_ERROR_BYTES].rstrip(b"\0").decode(errors="replace")

    def read(self):
        """Return everything: (number of changes, brokers, last_error, {name: (id, error_code, leaders)}).

        The id is what a slot row has as its topic.
        """
        cdef uint32_t number, generation
        if self.region.base == NULL or fork_page()[0] != self.region.process:
            raise ValueError("the snapshot is not mapped in this process")
        published = load_acquire(&self.header.published)
        topics = {}
        for number in range(CYP_TOPICS_MAX):
            generation = load_acquire32(&self.rows[number].generation)  # pairs with cyp_topic_publish
            if topic_load(&self.rows[number]) == 0:
                continue
            name = self.rows[number].name[:self.rows[number].name_bytes].decode()
            row = self.row(number)
            if row is not None and not generation & 1 and topic_is_valid(&self.rows[number], generation):
                topics[name] = topic_id(number, generation), row[0], row[1]
        return published, self.brokers(), self.last_error(), topics


cdef class SnapshotWriter(Snapshot):
    """The sender's side: owns the region, either a new one or the predecessor's.

    fd: the descriptor of the predecessor's region, owned from here on. Raises ValueError if it is not a snapshot of
    this layout.
    """

    def __cinit__(self, int fd=-1):
        cdef SnapshotGeometry geometry
        cdef uint32_t index
        cdef uint64_t area
        snapshot_geometry(&geometry)
        self.areas = LeaderAreas(CYP_LEADERS_BYTES)
        if fd >= 0:
            self._lay_out(Region.attach(fd, geometry.region_bytes, True))
            self._check_layout()
            for index in range(CYP_TOPICS_MAX):
                area = topic_leaders(&self.rows[index])
                if area >> 32:
                    self.areas.reserve(<uint32_t>area, area >> 32)
            for index in range(CYP_TOPIC_INDEX_ENTRIES):  # the caller enters all names again
                store_release(&self.index[index], 0)  # pairs with cyp_topic_find
            CRASHPOINT(b"recover.index-cleared")
            return
        self._lay_out(Region.create("cyproducer-snapshot", geometry.region_bytes))
        self.header.topics_max = CYP_TOPICS_MAX
        self.header.sticky_offset = geometry.sticky_offset
        self.header.topics_offset = geometry.topics_offset
        self.header.index_offset = geometry.index_offset
        self.header.changes_offset = geometry.changes_offset
        self.header.leaders_offset = geometry.leaders_offset
        self.header.region_bytes = geometry.region_bytes
        memset(self.region.base + geometry.sticky_offset, 0xff, CYP_TOPICS_MAX * 4)  # -1: none yet
        self.header.layout_version = CYP_LAYOUT_VERSION
        self.header.magic = CYP_SNAPSHOT_MAGIC

    def enter(self, uint32_t number, bytes name, uint32_t generation=0):
        """Enter a topic, whose name has this number. Give the row its name unless it has it. A free number is retired.

        `generation`: in which the name has the number; 0: the next one. Raise ValueError if the number or the
        name is too large, OverflowError if the index is full.
        """
        cdef uint32_t place = 0, found = 0
        cdef cyp_topic_row *row
        if number >= CYP_TOPICS_MAX or len(name) >= CYP_TOPIC_NAME_BYTES:
            raise ValueError(
                f"topic number {number} and a name of {len(name)} bytes: the limits are {CYP_TOPICS_MAX - 1} "
                f"and {CYP_TOPIC_NAME_BYTES - 1}"
            )
        row = &self.rows[number]
        if row.generation == 0 or row.generation & 1:
            topic_name(row, <const char *>name, <uint32_t>len(name), generation or topic_next_generation(row))
        CRASHPOINT(b"publish.topic-named")
        if self.number_of(name, &place, &found) != CYP_NONE:
            return
        if load_relaxed(&self.index[place]) != 0:
            raise OverflowError("the index of topics is full")
        topic_enter(self.index, place, number, topic_hash(name, <uint32_t>len(name)))
        CRASHPOINT(b"publish.topic-entered")

    def store(self, uint32_t number, int error_code, bytes leaders):
        """Publish the metadata of a topic and return whether it has changed.

        leaders: one byte per partition, 1 = its leader is known. Raise OverflowError if there is no space for so many
        partitions; the published metadata stays.
        """
        cdef cyp_topic_row *row = &self.rows[number]
        cdef uint64_t word = topic_word(error_code, <uint32_t>len(leaders))
        if topic_load(row) == word and self.row(number)[1] == leaders:
            return False
        self._store_leaders(row, leaders)
        CRASHPOINT(b"publish.leaders-stored")
        topic_store(row, word)
        CRASHPOINT(b"publish.row-stored")
        self._announce(number)
        return True

    cdef object _store_leaders(self, cyp_topic_row *row, bytes leaders):
        """Store the shares: partitions that had a leader keep their share, those that gain one get the full share."""
        cdef uint32_t count = <uint32_t>len(leaders), i, room, at
        cdef uint32_t known = topic_partitions(topic_load(row))
        cdef uint64_t area = topic_leaders(row)
        cdef const uint8_t *former = self.leaders + <uint32_t>area
        cdef const uint8_t *wanted = <const uint8_t *>PyBytes_AS_STRING(leaders)
        if count > area >> 32:
            at, room = self.areas.allocate(count)
            for i in range(count):
                store_relaxed8(&self.leaders[at + i], _share(wanted[i], former[i] if i < known else CYP_SHARE_NONE))
            topic_move(row, at, room)
            CRASHPOINT(b"publish.leaders-moved")
            if area >> 32:
                # A reader that is behind reads shares of another topic there, which are hints.
                self.areas.free(<uint32_t>area, area >> 32)
            return
        at = <uint32_t>area
        for i in range(count):
            store_relaxed8(&self.leaders[at + i], _share(wanted[i], former[i] if i < known else CYP_SHARE_NONE))

    def forget(self, uint32_t number):
        """Mark metadata that is not kept up to date any more: a front-end that does not use it yet asks for it."""
        cdef cyp_topic_row *row = &self.rows[number]
        topic_store(row, topic_load(row) | CYP_TOPIC_FORGOTTEN)

    def retire(self, uint32_t number):
        """Begin to give a number back: see cyp_topic_retire."""
        topic_retire(&self.rows[number])

    def keep(self, uint32_t number):
        """Let a retired number keep its name."""
        topic_keep(&self.rows[number])

    def clear(self, uint32_t number, bytes name):
        """Remove a retired number, which had this name, from the index, and clear its metadata. Announce the change."""
        cdef cyp_topic_row *row = &self.rows[number]
        cdef uint32_t place = topic_place(self.index, number, topic_hash(name, <uint32_t>len(name)))
        cdef uint64_t area = topic_leaders(row)
        if place != CYP_NONE:
            topic_leave(self.index, place)
            CRASHPOINT(b"topics.index-left")
        topic_store(row, 0)
        topic_move(row, 0, 0)
        if area >> 32:
            self.areas.free(<uint32_t>area, area >> 32)
        self.set_sticky(number, -1)
        self._announce(number)

    def announce_all(self):
        """Announce a change of all rows. A successor calls this: its predecessor may have stored rows unannounced."""
        self._announce(CYP_CHANGE_ALL)

    cdef int _announce(self, uint32_t number) except -1:
        cdef uint64_t position = load_relaxed(&self.header.published)
        change_put(self.changes, position, number)
        CRASHPOINT(b"publish.change-put")
        change_publish(&self.header.published, position)
        CRASHPOINT(b"publish.change-published")
        return 0

    def describe(self, uint32_t brokers, str last_error):
        """Publish the number of known brokers and the last error with the cluster, shortened if it is long."""
        cdef bytes encoded = _shortened(last_error.encode(), CYP_SNAPSHOT_ERROR_BYTES)
        cdef uint64_t text = load_relaxed(&self.header.text)
        cdef char *place
        store_relaxed32(&self.header.brokers, brokers)
        if self.last_error() == encoded.decode(errors="replace"):
            return
        text = ((text >> 1) + 1) << 1 | ((text & 1) ^ 1)
        place = <char *>self.header.texts + (text & 1) * CYP_SNAPSHOT_ERROR_BYTES
        memset(place, 0, CYP_SNAPSHOT_ERROR_BYTES)
        memcpy(place, <const char *>encoded, len(encoded))
        store_release(&self.header.text, text)  # pairs with the acquire in Snapshot.last_error

    def publish_auth_failure(self):
        """Publish that authentication has failed and no broker can be used. The last error must say why.

        It is announced as a change of all rows, so that waiters look again.
        """
        cdef uint32_t failures = load_relaxed32(&self.header.auth_failures)
        # pairs with the acquire in Snapshot.auth_failures: who sees the number reads the text of its error
        store_release32(&self.header.auth_failures, failures + 1)
        self.announce_all()

    def is_usable(self, uint32_t number):
        """Return whether there is metadata of the topic, without an error."""
        row = self.row(number)
        return row is not None and not row[0]

    def brokers_known(self):
        """Return the number of brokers that describe() has published last."""
        return self.brokers()

    def set_sticky(self, int number, int partition):
        """Publish the partition for records without a key of topic `number`; -1: front-ends choose themselves."""
        if not 0 <= number < <int>CYP_TOPICS_MAX:
            raise ValueError(f"the topic number must be from 0 to {CYP_TOPICS_MAX - 1}, not {number}")
        store_relaxed_i32(<int32_t *>(self.region.base + self.geometry.sticky_offset) + number, partition)


cdef class SnapshotReader(Snapshot):
    """A front-end's side: owns the region, mapped read-only."""

    def __cinit__(self, int fd):
        """Map the snapshot and own `fd` from here on. Raise ValueError if it is not a snapshot of our layout."""
        cdef SnapshotGeometry geometry
        snapshot_geometry(&geometry)
        self._lay_out(Region.attach(fd, geometry.region_bytes, False))
        self._check_layout()

    @property
    def version(self) -> int:
        """The number of changes that were published; 0 if none yet."""
        if self.region.base == NULL or fork_page()[0] != self.region.process:
            raise ValueError("the snapshot is not mapped in this process")
        return load_acquire(&self.header.published)

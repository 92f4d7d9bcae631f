"""Links elements in a ring: a circular doubly linked list whose links are members of the elements.

A walk begins at `first`. To begin a walk at another element, set `first` to its link: this rotates the ring. An element
that is appended becomes the last one, which is directly before `first`.

A structure begins with its Link, so a pointer to the link is cast to a pointer to the structure, and NULL stays NULL. A
lane can be in two rings. It begins with the link of one, and a LaneLink, which points to the lane, is in the other.
"""


ctypedef struct Link:
    Link *next
    Link *previous


ctypedef struct Ring:
    Link *first                     # NULL: the ring is empty
    uint32_t length


cdef inline void ring_append(Ring *ring, Link *link) noexcept nogil:
    """Append an element whose link is in no ring."""
    cdef Link *first = ring.first
    ring.length += 1
    if first == NULL:
        link.next = link
        link.previous = link
        ring.first = link
        return
    link.next = first
    link.previous = first.previous
    first.previous.next = link
    first.previous = link


cdef inline void ring_remove(Ring *ring, Link *link) noexcept nogil:
    """Remove an element of the ring. If it was the first one, the element after it becomes the first."""
    ring.length -= 1
    if link.next == link:
        ring.first = NULL
        return
    link.previous.next = link.next
    link.next.previous = link.previous
    if ring.first == link:
        ring.first = link.next

/* Reads two objects of S3 at the same time and hands them to the function: the one that the event names, and one that all events need. */
#include "pilotlight_initscript.h"

/* Ends the script, and says why in the function's log. */
static void fail(void) {
    char why[256];
    int32_t len = error_read(why, sizeof why);
    log(why, (size_t)len < sizeof why ? (size_t)len : sizeof why);
    exit(1);
}

static int32_t checked(int32_t result) {
    if (result < 0) {
        fail();
    }
    return result;
}

PILOTLIGHT_RUN {
    char request[1024] = "GET ";
    int32_t photos = checked(connect(PILOTLIGHT_TEXT("s3://photos")));
    int32_t len = checked(event_value(PILOTLIGHT_TEXT("key"), request + 4, sizeof request - 4));
    if ((size_t)len > sizeof request - 4) {
        exit(2); /* the key does not fit */
    }
    /* Both requests are under way before anything waits. */
    checked(send_rpc(photos, 0, request, 4 + (size_t)len));
    checked(send_rpc(photos, 1, PILOTLIGHT_TEXT("GET models/labels.json")));
    checked(send_reply(0, photos, 0));
    checked(send_reply(1, photos, 1));
}

//! The images in use, and whether their references still mean them. An image that is built or imported again under its old name
//! must not be served from containers of the old image. The engine reports changes of images; nothing is asked per invocation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::engine::{Engine, EngineError};
use crate::image::Image;

/// Images by reference, as they were last inspected.
#[derive(Debug)]
pub(crate) struct Images {
    cache: Arc<ImageCache>,
    /// Listens to the engine's events from the first look-up on; ends with this.
    listener: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct ImageCache {
    engine: Arc<Engine>,
    /// Guards only the map; never held across an await.
    known: Mutex<HashMap<String, Arc<Image>>>,
}

impl Images {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            cache: Arc::new(ImageCache {
                engine,
                known: Mutex::default(),
            }),
            listener: Mutex::new(None),
        }
    }

    /// The image that a reference means now.
    ///
    /// # Errors
    /// The engine does not have it, or is unreachable.
    pub(crate) async fn look_up(&self, reference: &str) -> Result<Arc<Image>, EngineError> {
        let image = self.cache.look_up(reference).await?;
        self.listener
            .lock()
            .get_or_insert_with(|| tokio::spawn(listen(Arc::clone(&self.cache))).abort_handle());
        Ok(image)
    }

    /// The image that it meant at the last look-up.
    pub(crate) fn known(&self, reference: &str) -> Option<Arc<Image>> {
        self.cache.known.lock().get(reference).cloned()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get_mut() {
            listener.abort();
        }
    }
}

impl ImageCache {
    async fn look_up(&self, reference: &str) -> Result<Arc<Image>, EngineError> {
        let found = Image::new(self.engine.image(reference).await?);
        let mut known = self.known.lock();
        if let Some(image) = known.get(reference) {
            if image.id == found.id {
                return Ok(Arc::clone(image));
            }
            image.replace();
        } else if known.len() >= IMAGES_MAX {
            // A dropped image is looked up again at its next start, and its containers start anew.
            for (_, image) in known.drain() {
                image.replace();
            }
        }
        let found = Arc::new(found);
        known.insert(reference.to_owned(), Arc::clone(&found));
        Ok(found)
    }

    async fn refresh(&self) {
        let references: Vec<String> = self.known.lock().keys().cloned().collect();
        for reference in references {
            // An error is ignored: containers of a removed image are still what was asked for.
            drop(self.look_up(&reference).await);
        }
    }
}

async fn listen(cache: Arc<ImageCache>) {
    loop {
        if let Ok(events) = cache.engine.image_events().await {
            let mut events = std::pin::pin!(events);
            // Catches up with changes from before the stream started.
            cache.refresh().await;
            while let Some(Ok(_)) = events.next().await {
                cache.refresh().await;
            }
            tracing::debug!("the container engine closed its event stream");
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// Most images that are watched.
const IMAGES_MAX: usize = 1000;

/// Pause before reconnecting to an engine that was unreachable.
const RETRY_AFTER: Duration = Duration::from_secs(1);

//! Functions of libc that this library stands before, and how to call the ones behind.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The definition of a symbol that would be used without this library: libc's, most often. `F` is
/// its type.
pub struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    ///
    /// `F` is a pointer to a function of the type that the symbol has.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self { name, address: AtomicPtr::new(ptr::null_mut()), of: PhantomData }
    }

    /// The function, unless nobody defines it.
    #[inline]
    pub fn find(&self) -> Option<F> {
        let address = self.address();
        // SAFETY: it has this type, by the contract of `new`, and the size of a pointer.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    /// The address of the function, or null.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero byte; RTLD_NEXT asks for what comes after this library.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Says that a function does not exist, to a caller who has found ours.
pub trait Missing {
    /// What such a call returns; sets `errno`.
    fn missing() -> Self;
}

macro_rules! missing_is_minus_one {
    ($($type:ty),*) => {$(
        impl Missing for $type {
            fn missing() -> Self {
                crate::set_errno(libc::ENOSYS);
                -1
            }
        }
    )*};
}

missing_is_minus_one!(i32, i64, isize);

impl Missing for () {
    fn missing() {}
}

impl Missing for libc::sighandler_t {
    fn missing() -> Self {
        crate::set_errno(libc::ENOSYS);
        libc::SIG_ERR
    }
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        crate::set_errno(libc::ENOSYS);
        ptr::null_mut()
    }
}

/// Defines functions before those of the same names: `next` is the one behind, and the body
/// answers.
///
/// The variable arguments of `open` and its like are named as if they were fixed: all ABIs that
/// this library is made for hand over the first few in the same registers, and whoever is behind
/// gets them on as they came.
///
/// A thread may be cancelled in the function behind, which unwinds it through here.
macro_rules! interpose {
    ($(|$next:ident| fn [$($name:ident),+] $args:tt -> $ret:ty $body:block)*) => {$(
        $($crate::next::interpose!(@one $next $name $args -> $ret $body);)+
    )*};
    (@one $next:ident $name:ident ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block) => {
        /// Stands before the function of this name.
        ///
        /// # Safety
        ///
        /// As that one.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the type is that of the function which is defined here.
            static NEXT: $crate::next::Next<unsafe extern "C-unwind" fn($($type),*) -> $ret> = unsafe {
                $crate::next::Next::new(
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    },
                )
            };
            let Some(next) = NEXT.find() else { return $crate::next::Missing::missing() };
            // SAFETY: the caller's promises are those that the function behind asks for.
            let $next = move |$($arg: $type),*| unsafe { next($($arg),*) };
            $body
        }
    };
}

pub(crate) use interpose;
